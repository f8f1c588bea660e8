"""The batch job, which answers a file of prompts and resumes a run that was stopped."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lastword.batch.answers import ANSWERED, FAILED, AnswerFile, Output
from lastword.batch.lines import (
    BatchLine,
    Format,
    PlainLine,
    PlainOutput,
    RejectedLine,
    Reply,
    line_name,
    parse_plain_line,
    rename_old_fields,
    reply_error,
    split_remote_prompt,
)
from lastword.batch.openai_format import OpenAIOutput, ServerBody, parse_request_line, to_batch_line
from lastword.decoding.loop import stops_per_prompt
from lastword.engines.base import Engine, GenerationRequest, RemoteModelInfo
from lastword.engines.local import error_text
from lastword.errors import LastwordError, PromptError, SettingError, WrongTypeError
from lastword.io.files import JournalFile, check_folder, check_target, os_error_reason, replacing, write
from lastword.io.prompts import (
    JSON_LINES,
    PARQUET,
    PROMPT_FIELDS,
    ROWS_PER_BATCH,
    PromptFile,
    PromptRecord,
    import_pyarrow,
    suffix_of,
)
from lastword.io.schema import parse_json, read_json_object
from lastword.prompts import has_chat_template, prompts_in_chat, tokenize_prompts, validate_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.request import ServerError
from lastword.serve.serving import choose_recipe
from lastword.serve.settings import ServerSettings
from lastword.validation import MAX_SEED, MAX_SLOTS, check_choice, check_int, is_list, short_repr
from lastword.version import __version__

MAX_FAILURES = 32  # in a row until the run stops, because the prompts are hardly the cause
MAX_REASON = 2_000  # characters
MAX_REJECTED = 1_000  # rejected lines that wait to be written

# The run id is a hash of these facts in this order; another order would give existing runs other ids.
# The last two are part of it only if they are set.
FACTS = ("model", "weights", "dtype", "recipe", "seed", "chat", "sha256", "form", "max_new_tokens", "stop")
FACT_NAMES = {
    "chat": "use of the chat template (--chat, --no-chat)",
    "sha256": "set of prompts",
    "form": "format of answers",
}


@dataclass(frozen=True)
class BatchProgress:
    """Counts and seconds of a running batch."""

    done: int  # prompts with a line, including those of earlier runs
    total: int
    failed: int  # part of `done`
    seconds: float  # since the start of this run
    seconds_left: float | None  # at the pace of this run; None: not known yet


@dataclass(frozen=True)
class BatchSummary:
    """The counts, tokens and seconds of a finished run; `path` is the file of answers."""

    path: Path
    prompts: int
    answered: int
    failed: int
    before: int  # answered or failed in earlier runs
    tokens: int  # in answers of this run
    seconds: float

    def __str__(self) -> str:
        before = f" ({self.before} by an earlier run)" if self.before else ""
        skipped = self.prompts - self.answered - self.failed
        unanswered = f", {skipped} left out" if skipped else ""
        counts = f"{self.answered} answered, {self.failed} failed{before}{unanswered}; "
        speed = ""
        if self.seconds:  # 0 if all prompts were answered by earlier runs
            speed = f"{self.tokens} tokens in {self.seconds:.1f} s, {self.tokens / self.seconds:.1f} tokens/s; "
        return f"{counts}{speed}answers in {self.path}"


Progress = Callable[[BatchProgress], None]


class Batch:
    """A job that answers files of prompts, plain or in OpenAI's format, and writes a file of answers.

    The constructor checks everything that does not need a model. `name` is the name of the model in requests and in
    the identity of the run. A line without a seed gets `seed` plus its index. `max_new_tokens` and `stop` apply to
    plain lines that set neither. A worker decodes `max_batch_size` prompts at once. `limit` restricts the run to the
    first lines; `chat` wraps text in the chat template (None: if the model has one); `in_order` sorts the lines by
    prompt at the end; `plain` writes plain lines even if the input has OpenAI's format.

    Lines contain seconds and dates only with `times`, so that equal runs give equal files.
    The run stops after `max_failures` failed answers, a number or a share such as "5%" (None: after 32 in a row).
    """

    def __init__(
        self,
        prompts: Path | str | Sequence[Path | str],
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
        max_failures: int | str | None = None,
        times: bool = False,
    ) -> None:
        check_int("batch", "max_batch_size", max_batch_size, minimum=1)
        for option, count in {"limit": limit, "max_new_tokens": max_new_tokens}.items():
            if count is not None:
                check_int("batch", option, count, minimum=1)
        if not is_list(stop) or not all(isinstance(text, str) and text for text in stop):
            raise WrongTypeError(f"batch(stop={short_repr(stop)}) was given; give a list of texts, none of them empty")
        check_choice("batch", "chat", chat, True, False, None)
        for option, value in {"in_order": in_order, "plain": plain, "times": times}.items():
            check_choice("batch", option, value, True, False)
        self.name, self.recipe, self.seed, self.max_batch_size = name, Recipe.coerce(recipe), seed, max_batch_size
        self.max_new_tokens, self.stop = max_new_tokens, tuple(stop)
        self.chat, self.in_order, self.times = chat, in_order, times
        self.out = Path(out)
        self._is_parquet = self.out.suffix.lower() in PARQUET
        # Lines are appended to this file; a Parquet file is written at the end.
        self.journal_path = self.out.with_name(f"{self.out.name}.jsonl") if self._is_parquet else self.out
        self.run_path = self.out.with_name(f"{self.out.name}.run.json")  # describes the run
        paths = [Path(path) for path in ([prompts] if isinstance(prompts, (str, Path)) else prompts)]
        self.file = PromptFile(*paths)
        for written in (self.out.absolute(), self.journal_path.absolute()):
            for path in map(Path.absolute, paths):
                is_deep_enough = "**" in path.parts or len(path.parts) == len(written.parts)  # `*` matches no `/`
                is_matched = path in written.parents or (is_deep_enough and fnmatch(str(written), str(path)))
                if path not in self.file.paths and written != path and is_matched:
                    raise SettingError(
                        f"{written} would be one of the files of prompts; give the answers another file (--out)"
                    )
        for path in self.file.paths:
            if suffix_of(path) not in JSON_LINES + PARQUET:
                raise PromptError(
                    f"{path.name} ends in {path.suffix or 'nothing'}; give prompts as .jsonl, .jsonl.gz or .parquet "
                    "(an object per line or row)"
                )
        self._journal: JournalFile | None = None  # while it is written
        self._check_out()
        self._scan()
        self.total = min(self.count, limit or self.count)
        self.max_failures = None if max_failures is None else _as_count(max_failures, self.total)
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
            output: Output = PlainOutput(run_id, times=self.times)
            if self.output_format == "openai":
                output = OpenAIOutput(run_id, self.name, times=self.times)
            answers = AnswerFile(journal, output, self.count)
            before = answers.count()
            work = _Run(self, engine, recipe, chat, answers, progress)
            try:
                seconds = work.answer_all()
            finally:
                self._save_failures(work.failures)
            if self._is_parquet:
                _write_parquet(self.out, answers.sorted_lines(), output.columns)
            elif self.in_order:
                answers.sort()
        failed = answers.count(FAILED)
        return BatchSummary(self.out, self.count, answers.count(ANSWERED), failed, before, work.num_tokens, seconds)

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
                f'{self.file.name} has no prompts{reason}; give an object per line, such as {{"prompt": "6 x 7 = ?"}}'
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
                        f"{self.file.name}: {record.where} repeats the custom_id {short_repr(name)} of {first[name]}; "
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
        if self.out.exists() and any(map(self.out.samefile, self.file.paths)):
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

    def _save_failures(self, failures: Mapping[int, str]) -> None:
        """Save the reasons of prompts that failed when the run stopped, next to the description of the run."""
        saved = self._saved_run()
        if saved is not None and failures != self.failures:
            saved.pop("failures", None)
            saved |= {"failures": {str(index): reason for index, reason in failures.items()}} if failures else {}
            write(self.run_path, json.dumps(saved, indent=1))

    def _saved_run(self) -> dict[str, Any] | None:
        """Return the description of a run next to the answers, or None if there is none."""
        with suppress(OSError, ValueError):
            saved = read_json_object(self.run_path)
            if {"run", "lastword"} <= saved.keys() and all(map(str.isdecimal, dict(saved.get("failures", {})))):
                return saved
        return None

    def _identify(self, facts: dict[str, Any], *, is_new: bool) -> str:
        """Return the run id, stored next to the answers; raise SettingError if they belong to another run."""
        path = self.run_path
        saved = self._saved_run() or {}
        self.failures = {int(index): str(reason) for index, reason in saved.get("failures", {}).items()}  # by prompt
        if is_new and any(saved.get(name) != facts.get(name) for name in FACTS):
            self.failures = {}
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


class _Run:
    """The state of a batch while it is answered."""

    def __init__(
        self, batch: Batch, engine: Engine, recipe: Recipe, chat: bool, answers: AnswerFile, progress: Progress
    ) -> None:
        self.batch, self.engine, self.recipe, self.chat = batch, engine, recipe, chat  # the recipe for the model
        self.answers, self.output, self.progress = answers, answers.output, progress
        self.done = self._before = answers.count(end=batch.total)
        self.failed = answers.count(FAILED, batch.total)
        self.num_tokens = 0
        # Reasons by index of prompts that failed when a run stopped: they have no line and are answered last.
        self.failures = {index: reason for index, reason in batch.failures.items() if index not in answers}
        self._open: dict[int, tuple[BatchLine, dict[int, Reply]]] = {}
        self._unwritten: list[tuple[int, bytes, bool]] = []  # failures are kept here until there is an answer
        self._rejected: list[tuple[int, bytes, bool]] = []
        self._num_failures, self._last_reason = 0, ""  # of this run

    def answer_all(self) -> float:
        """Answer all prompts without a line, those that failed before last; return the seconds that this took."""
        waiting = self.batch.total - self.done
        self._start = perf_counter()
        self._report()
        failed_before = {*self.failures}
        for again in (False, True) if failed_before else (False,):
            chosen = (record for record in self._waiting() if (record.index in failed_before) == again)
            requests, rows = self._requests(chosen), self.batch.max_batch_size
            for replies in self.engine.generate(requests, self.recipe, max_batch_size=rows):
                self._take(replies, is_final=again and self.answers.count(ANSWERED) > 0)
            self._write()
        return perf_counter() - self._start if waiting else 0.0

    def _waiting(self) -> Iterator[PromptRecord]:
        records = islice(self.batch.file, self.batch.total)
        return (record for record in records if record.index not in self.answers)

    def _requests(self, records: Iterable[PromptRecord]) -> Iterator[tuple[tuple[int, int], GenerationRequest]]:
        """Yield the requests of lines, keyed by line index and answer number; rejected lines are written later."""
        for record in records:
            line = self._prepare(record)
            if isinstance(line, BatchLine):
                self._open[line.index] = (line, {})
                for number, (recipe, request) in enumerate(zip(line.recipes, line.requests)):
                    yield (line.index, number), replace(request, recipe=recipe)
                continue
            self._rejected.append((line.index, self.output.rejected(line), True))
            if len(self._rejected) == MAX_REJECTED:
                self._write_lines(self._rejected)

    def _prepare(self, record: PromptRecord) -> BatchLine | RejectedLine:
        """Return the line with tokenized requests, or a RejectedLine if that is impossible."""
        batch, model, index = self.batch, self.engine.model_info, record.index
        name, seed = line_name(record.data), batch.seed + index
        request_error = None
        try:
            line = batch.parse(record)
            if isinstance(line, PlainLine):
                return self._plain_line(index, name, line)
            max_answers = 1 if batch.output_format == "lines" else None
            return to_batch_line(index, name, line, model, batch.name, batch.recipe, seed=seed, max_answers=max_answers)
        except LastwordError as error:
            reason = str(error)
            request_error = error if isinstance(error, ServerError) else None
        except Exception as error:  # tokenizers and chat templates may raise anything
            reason = f"the prompt could not be tokenized ({error_text(error)})"
        return RejectedLine(index, name, f"{record.where}: {reason}"[:MAX_REASON], request_error)

    def _plain_line(self, index: int, name: str | int | None, line: PlainLine) -> BatchLine:
        """Return a plain line with its request, tokenized unless a server does it."""
        batch, model = self.batch, self.engine.model_info
        prompt: Any = line.as_prompt(chat=self.chat)
        stop = batch.stop if line.stop is None else tuple(line.stop)
        if isinstance(model, RemoteModelInfo):
            ids, text = split_remote_prompt(prompt)
        else:
            (ids,), text = tokenize_prompts(model, prompt), None
            validate_prompts([ids], model.ids)
            stops_per_prompt("batch", stop, 1, model)  # refuses stop strings without a tokenizer
        (in_chat,) = prompts_in_chat(prompt)
        recipe = self.recipe
        if any(getattr(line, setting) is not None for setting in ("recipe", "length", "temperature", "top_p", "top_k")):
            recipe = resolve(choose_recipe(line, ServerSettings(recipe=batch.recipe)), model, in_chat=[in_chat])
        cap = line.max_tokens or batch.max_new_tokens
        seed = line.seed if line.seed is not None else batch.seed + index
        request = GenerationRequest(ids, seed, cap and min(cap, MAX_SLOTS), text, stop)
        return BatchLine(index, name, (request,), (recipe,), is_chat=in_chat)

    def _take(self, replies: Sequence[Reply], *, is_final: bool) -> None:
        """Write the lines that these replies complete; unless `is_final`, hold failures back until the next answer."""
        any_answer, limit = is_final, self.batch.max_failures
        for reply in replies:
            index, number = reply.key
            line, parts = self._open[index]
            parts[number] = reply
            if len(parts) == len(line.requests):
                del self._open[index]
                any_answer |= self._complete(line, [parts[number] for number in range(len(parts))])
        in_a_row = len(self._unwritten)
        if any_answer or (limit is not None and in_a_row >= MAX_FAILURES):
            self._write()
        if self._num_failures > limit if limit is not None else len(self._unwritten) >= MAX_FAILURES:
            count = (
                f"{self._num_failures} prompt{'s' * (self._num_failures != 1)}"
                if limit is not None
                else f"{in_a_row} prompts in a row"
            )
            raise SettingError(
                f"{count} failed, the last one with: {self._last_reason}. Answers are kept: fix the cause and give the "
                "same command again, which answers other prompts before these, or allow more with --max-failures"
            )

    def _complete(self, line: BatchLine, replies: Sequence[Reply]) -> bool:
        """Encode the line of a prompt whose requests have replies; return whether there is an answer."""
        error = next(filter(None, map(reply_error, replies)), None)
        if error is None:
            content = self.output.answered(line, replies)
            self.num_tokens += sum(reply.details["length"] or 0 for reply in replies)
        else:
            content = self.output.failed(line, error)
            self.failures[line.index] = self._last_reason = str(error)[:MAX_REASON]
            self._num_failures += 1
        self._unwritten.append((line.index, content, error is not None))
        return all(reply.error is None for reply in replies)

    def _write(self) -> None:
        self._write_lines(self._unwritten, self._rejected)
        self._report()

    def _write_lines(self, *groups: list[tuple[int, bytes, bool]]) -> None:
        """Write groups of lines at once, and empty them."""
        lines = [line for group in groups for line in group]
        if not lines:
            return
        self.answers.append(lines)
        self.done += len(lines)
        self.failed += sum(failed for _, _, failed in lines)
        for index, _, _ in lines:
            self.failures.pop(index, None)
        for group in groups:
            group.clear()

    def _report(self) -> None:
        seconds, answered, total = perf_counter() - self._start, self.done - self._before, self.batch.total
        left = seconds * (total - self.done) / answered if answered else None
        self.progress(BatchProgress(self.done, total, self.failed, seconds, left))


def _as_count(value: int | str, total: int) -> int:
    """Return a number, or a share of `total` such as "5%", as a number; raise SettingError if it is neither."""
    number = str(value).removesuffix("%")
    with suppress(ValueError):
        if isinstance(value, str) and value.endswith("%") and 0 <= float(number) <= 100:
            return int(total * float(number) / 100)
        if not isinstance(value, bool) and int(number) >= 0 and number == str(value):
            return int(number)
    raise SettingError(f"batch(max_failures={short_repr(value)}) was given; give a number, or a share such as 5%")


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
