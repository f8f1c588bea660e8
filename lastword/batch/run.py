"""The batch job, which answers a file of prompts and resumes a run that was stopped."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lastword.batch.lines import (
    BatchLine,
    Format,
    LineDefaults,
    PlainLine,
    PlainOutput,
    RejectedLine,
    Reply,
    line_name,
    parse_plain_line,
    rename_old_fields,
    reply_error,
    to_plain_batch_line,
)
from lastword.batch.openai_format import OpenAIOutput, ServerBody, parse_request_line, to_batch_line
from lastword.batch.progress import (
    MAX_PROBES,
    BatchProgress,
    BatchSummary,
    RemainingTime,
    estimated_work,
    predicted_work,
)
from lastword.engines.base import Engine, GenerationRequest, RemoteModelInfo
from lastword.engines.local import error_text
from lastword.errors import LastwordError, PromptError, SettingError
from lastword.io.files import NEWLINE, JournalFile, check_folder, check_target, os_error_reason, replacing, write
from lastword.io.prompts import (
    JSON_LINES,
    PARQUET,
    PROMPT_FIELDS,
    ROWS_PER_BATCH,
    PromptFile,
    PromptRecord,
    import_pyarrow,
)
from lastword.io.schema import parse_json, read_json_object
from lastword.prompts import has_chat_template
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.request import ServerError
from lastword.validation import MAX_SEED, check_choice, check_int, check_list, check_type, short_repr
from lastword.version import __version__

PORTION = 4096  # prompts that are tokenized and given to the engine at once
PORTION_TOKENS = 2**23  # approximate number of tokens in a portion
MAX_FAILURES = 32  # in a row until the run stops, because the prompts are hardly the cause
MAX_REASON = 2_000  # characters

# The run id is a hash of these facts in this order; another order would give existing runs other ids.
# The last two are part of it only if they are set.
FACTS = ("model", "weights", "dtype", "recipe", "seed", "chat", "sha256", "form", "max_new_tokens", "stop")
FACT_NAMES = {"chat": "use of the chat template (--chat, --no-chat)", "sha256": "prompts", "form": "format of answers"}

Output = PlainOutput | OpenAIOutput
Progress = Callable[[BatchProgress], None]


class Batch:
    """A job that answers a file of prompts, plain or in OpenAI's format, and writes a file of answers.

    The constructor checks everything that does not need a model. `name` is the name of the model in requests and in
    the identity of the run. A line without a seed gets `seed` plus its index. `max_new_tokens` and `stop` apply to
    plain lines that set neither. A worker decodes `max_batch_size` prompts at once. `limit` restricts the run to the
    first lines; `chat` wraps text in the chat template (None: if the model has one); `in_order` sorts the lines by
    prompt at the end; `plain` writes plain lines even if the input has OpenAI's format.
    """

    def __init__(
        self,
        prompts: Path | str,
        out: Path | str,
        *,
        name: str,
        recipe: Recipe | str | None = None,
        seed: int = 0,
        limit: int | None = None,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        max_batch_size: int = 8,
        chat: bool | None = None,
        in_order: bool = True,
        plain: bool = False,
    ) -> None:
        check_int("batch", "max_batch_size", max_batch_size, minimum=1)
        for option, count in {"limit": limit, "max_new_tokens": max_new_tokens}.items():
            if count is not None:
                check_int("batch", option, count, minimum=1)
        check_list("batch", "stop", stop, "a list of texts")
        for text in stop:
            check_type("batch", "stop", text, str, "a list of texts")
            if not text:
                raise SettingError(f"batch(stop={short_repr(stop)}) was given; leave the empty text out")
        check_choice("batch", "chat", chat, True, False, None)
        for option, value in {"in_order": in_order, "plain": plain}.items():
            check_choice("batch", option, value, True, False)
        self.name, self.recipe, self.seed, self.max_batch_size = name, Recipe.coerce(recipe), seed, max_batch_size
        self.max_new_tokens, self.stop = max_new_tokens, tuple(stop)
        self.chat, self.in_order = chat, in_order
        self.out, prompts = Path(out), Path(prompts)
        self._is_parquet = self.out.suffix.lower() in PARQUET
        # Lines are appended to this file; a Parquet file is written at the end.
        self.journal_path = self.out.with_name(f"{self.out.name}.jsonl") if self._is_parquet else self.out
        self.run_path = self.out.with_name(f"{self.out.name}.run.json")  # describes the run
        if prompts.suffix.lower() not in JSON_LINES + PARQUET:
            raise PromptError(
                f"{prompts.name} ends in {prompts.suffix or 'nothing'}; give prompts as .jsonl or .parquet "
                "(an object per line or row)"
            )
        self.file = PromptFile(prompts)
        self._journal: JournalFile | None = None  # while it is written
        self._check_out()
        self._scan()
        self.total = min(self.count, limit or self.count)
        check_int("batch", "seed", seed, minimum=-MAX_SEED, maximum=MAX_SEED - self.count)
        self.output_format: Format = "lines" if plain else self.input_format

    def run(self, engine: Engine, progress: Progress = lambda state: None) -> BatchSummary:
        """Answer each prompt that has no line yet, and append lines as answers arrive.

        A run that was stopped or killed is resumed; SettingError is raised if the file has answers of another run.
        """
        model = engine.model_info
        chat = self.chat
        if chat is None:
            chat = model.has_chat_template if isinstance(model, RemoteModelInfo) else has_chat_template(model)
        in_chat = self.in_chat - {False} | ({chat} if False in self.in_chat else set())
        recipe = resolve(self.recipe, model, in_chat=in_chat)
        facts = {"model": self.name, "weights": model.fingerprint, "dtype": model.dtype, "seed": self.seed}
        facts |= {"chat": chat, "sha256": self.file.digest(), "form": self.output_format}
        optional = {"max_new_tokens": self.max_new_tokens, "stop": list(self.stop)}
        facts |= {name: value for name, value in optional.items() if value}
        facts["recipe"] = json.loads(recipe.to_json())
        with self.writing() as journal:
            run_id = self._identify(facts, is_new=not journal.path.stat().st_size)
            output = PlainOutput(run_id) if self.output_format == "lines" else OpenAIOutput(run_id, self.name)
            answers = AnswerFile(journal, output)
            before = len(answers.offsets)
            defaults = LineDefaults(self.recipe, recipe, chat, self.max_new_tokens, self.stop)
            work = _Run(self, engine, defaults, output, answers, progress)
            seconds = work.answer_all()
            if self._is_parquet:
                _write_parquet(self.out, answers.sorted_lines(), output.columns)
            elif self.in_order:
                answers.sort()
        failed = len(answers.failed)
        answered = len(answers.offsets) - failed
        return BatchSummary(self.out, self.count, answered, failed, before, work.num_tokens, seconds)

    @contextmanager
    def writing(self) -> Iterator[JournalFile]:
        """Open and lock the file of answers; enter this before a model is loaded, since another process may write it.

        An empty file is removed at the end.
        """
        if self._journal is not None:
            yield self._journal
            return
        journal = JournalFile(self.journal_path, kind="answers of this run", remedy="give another file (--out)")
        with journal.writing():
            self._journal = journal
            try:
                yield journal
            finally:
                self._journal = None
                with suppress(FileNotFoundError):
                    if not self.journal_path.stat().st_size:
                        self.journal_path.unlink()

    def _scan(self) -> None:
        """Set `input_format`, `count` and `in_chat` (the kinds of prompts); raise PromptError if there is no prompt.

        Lines after the first prompt are checked when they are answered.
        """
        self.input_format: Format = "lines"
        self.in_chat: set[bool | None] = set()
        self.count, error, has_format, has_prompt = 0, "", False, False
        custom_ids = array("I")  # checksums: a hundred million ids need 400 MB
        for record in self.file:
            self.count += 1
            fields = record.data if isinstance(record.data, dict) else {}
            if record.error is None and not has_format:
                self.input_format, has_format = "openai" if "body" in fields else "lines", True
            if not has_prompt:
                try:
                    with suppress(ServerError):  # a well-formed line whose body is invalid
                        self.parse(record)
                    has_prompt = True
                except PromptError as failure:
                    error = error or f"{record.where}: {failure}"
            if fields.get("custom_id") is not None:
                custom_ids.append(crc32(str(fields["custom_id"]).encode(errors="replace")))
            kinds = [name for name in PROMPT_FIELDS if fields.get(name) is not None]
            if "url" in fields:
                self.in_chat.add(fields["url"] == "/v1/chat/completions" or None)
            elif len(kinds) == 1:
                self.in_chat.add({"messages": True, "prompt": False}.get(kinds[0]))
        if not has_prompt:
            reason = f": none of its {self.count} lines is one. {error}" if self.count else ""
            raise PromptError(
                f'{self.file.path} has no prompts{reason}; give an object per line, such as {{"prompt": "6 x 7 = ?"}}'
            )
        self._check_repeated(np.frombuffer(custom_ids, np.uint32))

    def _check_repeated(self, checksums: NDArray[np.uint32]) -> None:
        """Raise PromptError if two lines have one custom_id; lines with equal checksums are read again."""
        checksums.sort()
        repeated = {*checksums[1:][checksums[1:] == checksums[:-1]].tolist()}
        first = dict[str, str]()
        for record in self.file if repeated else ():
            name = str(record.data.get("custom_id")) if isinstance(record.data, dict) else ""
            if crc32(name.encode(errors="replace")) in repeated and record.data.get("custom_id") is not None:
                if name in first:
                    raise PromptError(
                        f"{self.file.path}: {record.where} repeats the custom_id {short_repr(name)} of {first[name]}; "
                        "give each line its own, since answers are told apart by it"
                    )
                first[name] = record.where

    def parse(self, record: PromptRecord) -> PlainLine | ServerBody:
        """Return the prompt or request of a line; raise PromptError, or ServerError if its body is invalid."""
        if record.error is not None:
            raise PromptError(record.error)
        return parse_plain_line(record.data) if self.input_format == "lines" else parse_request_line(record.data)

    def _check_out(self) -> None:
        """Raise SettingError if the file of answers cannot be written or was not written by a batch."""
        if self.out.suffix.lower() not in JSON_LINES + PARQUET:
            raise SettingError(f"{self.out} was given for the answers; end it in .jsonl (lines) or .parquet (rows)")
        if self.out.exists() and self.out.samefile(self.file.path):
            raise SettingError(f"{self.out} holds the prompts; give the answers another file (--out)")
        check_folder(self.out.parent)
        has_answers = self.journal_path.exists() and self.journal_path.stat().st_size
        if not has_answers and self.run_path.exists() and self._saved_run() is None:
            raise SettingError(
                f"{self.run_path} exists and does not describe a run of lastword batch; move it away, or give another "
                "file with --out"
            )
        if self._is_parquet:
            import_pyarrow()
            check_target(self.out)
            if self.out.exists() and not self.journal_path.exists():
                raise SettingError(
                    f"{self.out} exists, and no file beside it shows that a batch wrote it; give another file "
                    "with --out, or move it away"
                )

    def _saved_run(self) -> dict[str, Any] | None:
        """Return the description of a run next to the answers, or None if there is none."""
        with suppress(OSError, ValueError):
            saved = read_json_object(self.run_path)
            return saved if {"run", "lastword"} <= saved.keys() else None
        return None

    def _identify(self, facts: dict[str, Any], *, is_new: bool) -> str:
        """Return the run id, stored next to the answers; raise SettingError if they belong to another run."""
        path = self.run_path
        if is_new:
            content = json.dumps([facts[name] for name in FACTS if name in facts], sort_keys=True)
            run_id = sha256(content.encode()).hexdigest()[:12]
            write(path, json.dumps({"run": run_id, "lastword": __version__, **facts}, indent=1))
            return run_id
        try:
            other = read_json_object(path)
            run_id = str(other["run"])
            # Older versions have other names for some fields of a recipe, which from_json renames.
            other["recipe"] = json.loads(Recipe.from_json(json.dumps(other["recipe"])).to_json())
        except (OSError, ValueError, LookupError, LastwordError) as error:
            raise SettingError(
                f"{self.out} exists, and {path.name} beside it does not identify its run "
                f"({os_error_reason(error)}); it was left unchanged: give another file with --out, or move "
                "it away"
            ) from error
        for name in FACTS:
            if other.get(name) != facts.get(name):
                then, now = (
                    Recipe.from_json(json.dumps(values[name])).label()
                    if name == "recipe"
                    else json.dumps(values.get(name), sort_keys=True)
                    for values in (other, facts)
                )
                raise SettingError(
                    f"{self.out} holds answers of another run: another {FACT_NAMES.get(name, name)} "
                    f"({then:.300} then, {now:.300} now); give another file with --out, use the settings of "
                    f"that run, or move it and {path.name} away"
                )
        return run_id


class AnswerFile:
    """The lines of one run in an open journal, one per prompt; only their offsets are in memory."""

    def __init__(self, journal: JournalFile, output: Output) -> None:
        self.path, self._journal, self._output = journal.path, journal, output
        self.offsets: dict[int, int] = {}  # in bytes, by prompt index
        self.failed: set[int] = set()
        self._end = 0
        prefix = output.prefix
        journal.recover(self._read, lambda line: line[: len(prefix)] == prefix[: len(line)])

    def append(self, lines: Sequence[tuple[int, bytes, bool]]) -> None:
        """Write lines to disk, all or none; a line has an index, its content, and whether the answer failed."""
        self._journal.append(b"".join(line + NEWLINE for _, line, _ in lines))
        for index, line, failed in lines:
            self._note(index, len(line) + 1, failed)

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the lines in the order of the prompts."""
        with self.path.open("rb") as file:
            for index in sorted(self.offsets):
                file.seek(self.offsets[index])
                yield file.readline()

    def sort(self) -> None:
        """Rewrite the file with its lines in the order of the prompts, unless they are in order."""
        if list(self.offsets) != sorted(self.offsets):
            with replacing(self.path) as file:
                file.writelines(self.sorted_lines())

    def _note(self, index: int, length: int, failed: bool) -> None:
        self.offsets[index] = self._end
        self._end += length
        if failed:
            self.failed.add(index)

    def _read(self, line: bytes) -> None:
        """Record the offset of a line; raise ValueError if it is not a line of this run."""
        run, index, failed = self._output.read(parse_json(line))
        if run != self._output.run:
            raise ValueError(f"it belongs to the run {run}, and this is {self._output.run}")
        if index in self.offsets:
            raise ValueError(f"it is the second line of prompt {index}")
        self._note(index, len(line) + 1, failed)


class _Run:
    """The state of a batch while it is answered."""

    def __init__(
        self,
        batch: Batch,
        engine: Engine,
        defaults: LineDefaults,
        output: Output,
        answers: AnswerFile,
        progress: Progress,
    ) -> None:
        self.batch, self.engine, self.defaults = batch, engine, defaults
        self.output, self.answers, self.progress = output, answers, progress
        self.done = sum(index < batch.total for index in answers.offsets)
        self.failed = sum(index < batch.total for index in answers.failed)
        self.num_tokens = 0
        self._sample: dict[int, BatchLine | RejectedLine] = {}  # prepared lines of the probed prompts
        self._open: dict[int, tuple[BatchLine, dict[int, Reply]]] = {}
        self._unwritten: list[tuple[int, bytes, bool]] = []  # failures are kept here until there is an answer
        self._last_error: LastwordError | None = None

    def answer_all(self) -> float:
        """Answer all prompts without a line, in portions, and return the seconds that this took."""
        waiting = self.batch.total - self.done
        self.remaining = RemainingTime(waiting, self._predict(waiting) if waiting else {})
        self._report()
        for portion in self._portions():
            for line in portion:
                if isinstance(line, RejectedLine):
                    self._unwritten.append((line.index, self.output.rejected(line), True))
                    self.remaining.skip(line.index)
            self._write()
            self._open = {line.index: (line, {}) for line in portion if isinstance(line, BatchLine)}
            for recipe, requests in _by_recipe(portion).items():
                for replies in self.engine.generate(requests, recipe, max_batch_size=self.batch.max_batch_size):
                    self._take(replies)
        self._write()
        return self.remaining.seconds if waiting else 0.0

    def _waiting(self) -> Iterator[PromptRecord]:
        records = islice(self.batch.file, self.batch.total)
        return (record for record in records if record.index not in self.answers.offsets)

    def _portions(self) -> Iterator[list[BatchLine | RejectedLine]]:
        portion: list[BatchLine | RejectedLine] = []
        num_tokens = 0
        for record in self._waiting():
            line = self._sample.pop(record.index, None) or self._prepare(record)
            portion.append(line)
            if isinstance(line, BatchLine):
                num_tokens += sum(len(request.prompt_ids) for request in line.requests)
            if len(portion) == PORTION or num_tokens > PORTION_TOKENS:
                yield portion
                portion, num_tokens = [], 0
        yield portion

    def _prepare(self, record: PromptRecord) -> BatchLine | RejectedLine:
        """Return the line with tokenized requests, or a RejectedLine if that is impossible."""
        batch, model, index = self.batch, self.engine.model_info, record.index
        name, seed = line_name(record.data), batch.seed + index
        request_error = None
        try:
            line = batch.parse(record)
            if isinstance(line, PlainLine):
                return to_plain_batch_line(index, name, line, model, self.defaults, seed=seed)
            max_answers = 1 if batch.output_format == "lines" else None
            return to_batch_line(index, name, line, model, batch.name, batch.recipe, seed=seed, max_answers=max_answers)
        except LastwordError as error:
            reason = str(error)
            request_error = error if isinstance(error, ServerError) else None
        except Exception as error:  # tokenizers and chat templates may raise anything
            reason = f"the prompt could not be tokenized ({error_text(error)})"
        return RejectedLine(index, name, f"{record.where}: {reason}"[:MAX_REASON], request_error)

    def _predict(self, waiting: int) -> dict[int, float]:
        """Return the predicted work of sampled prompts by index; empty if the engine cannot predict lengths."""
        chosen = {number * waiting // MAX_PROBES for number in range(MAX_PROBES)}
        for number, record in enumerate(islice(self._waiting(), max(chosen) + 1)):
            if number in chosen:
                self._sample[record.index] = self._prepare(record)
        work: dict[int, float] = {}
        for recipe, requests in _by_recipe(self._sample.values()).items():
            for lengths in self.engine.predict_lengths(requests, recipe, max_batch_size=MAX_PROBES):
                for (index, number), slots in lengths.items():
                    prompt_tokens = len(requests[index, number].prompt_ids)
                    work[index] = work.get(index, 0.0) + estimated_work(recipe, prompt_tokens, float(slots))
        return work

    def _take(self, replies: Sequence[Reply]) -> None:
        """Write the lines that these replies complete; hold failures back until the next answer."""
        any_answer = False
        for reply in replies:
            index, number = reply.key
            line, parts = self._open[index]
            parts[number] = reply
            if len(parts) == len(line.requests):
                del self._open[index]
                self._complete(line, [parts[number] for number in range(len(parts))])
                any_answer |= all(part.error is None for part in parts.values())
        if any_answer:
            self._write()
        elif len(self._unwritten) >= MAX_FAILURES:
            raise SettingError(
                f"{len(self._unwritten)} prompts in a row failed, the last one with: {self._last_error}. The prompts "
                "are hardly the reason, so these failures were not written; earlier lines are kept: fix the cause "
                "and give the same command again"
            )

    def _complete(self, line: BatchLine, replies: Sequence[Reply]) -> None:
        error = next(filter(None, map(reply_error, replies)), None)
        if error is None:
            content = self.output.answered(line, replies)
            self.num_tokens += sum(reply.details["length"] or 0 for reply in replies)
        else:
            self._last_error, content = error, self.output.failed(line, error)
        self._unwritten.append((line.index, content, error is not None))
        predicted = [predicted_work(recipe, reply.details) for recipe, reply in zip(line.recipes, replies)]
        known = [work for work in predicted if work is not None]
        self.remaining.finish(line.index, sum(known) if len(known) == len(predicted) else None)

    def _write(self) -> None:
        if self._unwritten:
            self.answers.append(self._unwritten)
        self.done += len(self._unwritten)
        self.failed += sum(failed for _, _, failed in self._unwritten)
        self._unwritten = []
        self._report()

    def _report(self) -> None:
        state = self.remaining
        self.progress(BatchProgress(self.done, self.batch.total, self.failed, state.seconds, state.seconds_left))


def _by_recipe(lines: Iterable[BatchLine | RejectedLine]) -> dict[Recipe, dict[tuple[int, int], GenerationRequest]]:
    """Group requests by recipe, keyed by line index and answer number."""
    by_recipe: dict[Recipe, dict[tuple[int, int], GenerationRequest]] = {}
    for line in lines:
        if isinstance(line, BatchLine):
            for number, (recipe, request) in enumerate(zip(line.recipes, line.requests)):
                by_recipe.setdefault(recipe, {})[line.index, number] = request
    return by_recipe


def _write_parquet(path: Path, lines: Iterable[bytes], columns: dict[str, str]) -> None:
    """Write lines as rows of a Parquet file; objects become JSON text."""
    pyarrow = import_pyarrow()
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in columns.items()])

    def to_row(line: bytes) -> dict[str, Any]:
        row: dict[str, Any] = rename_old_fields(parse_json(line))
        for name, value in row.items():
            if isinstance(value, dict):
                row[name] = json.dumps(value, ensure_ascii=False)
            elif columns[name] == "string" and value is not None:
                row[name] = str(value)
        return row

    rows = map(to_row, lines)
    with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while some := list(islice(rows, ROWS_PER_BATCH)):
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
