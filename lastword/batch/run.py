"""`run`: answer a file of prompts into a file of answers; given again, it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lastword.batch import columns, parquet
from lastword.batch.answered import Answering
from lastword.batch.answers import Answers
from lastword.batch.asked import Asking
from lastword.batch.identity import Identity
from lastword.batch.line import Form
from lastword.batch.outcome import BatchProgress, BatchSummary
from lastword.batch.source import LINES, PARQUET, Source
from lastword.batch.survey import Survey, survey
from lastword.batch.working import Working
from lastword.engines.base import Engine
from lastword.errors import SettingError
from lastword.io.files import check_folder, check_target
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import MAX_SEED, check_choice, check_int

Progress = Callable[[BatchProgress], None]


@dataclass(frozen=True)
class Batch:
    """A file of prompts that was looked over, and how it is to be answered."""

    source: Source
    found: Survey
    out: Path
    name: str
    recipe: Recipe
    form: Form  # of the answers
    seed: int = 0
    limit: int | None = None
    rows: int = 8
    chat: bool = False
    in_order: bool = True

    def run(self, engine: Engine, progress: Progress = lambda state: None) -> BatchSummary:
        """Ask the engine every prompt that has no line yet, and write what comes of each."""
        resolved = resolve(self.recipe, engine.model_info, in_chat=self.found.in_chat)
        identity = Identity.of(
            engine, self.name, resolved, self.found, seed=self.seed, chat=self.chat, form=self.form
        )
        answering = Answering(identity.run, self.name, self.form)
        asking = Asking(
            engine.model_info,
            self.name,
            self.recipe,
            resolved,
            self.found.form,
            seed=self.seed,
            chat=self.chat,
            single=self.form == "lines",
        )
        answers = Answers(journal_of(self.out), answering, partial(identity.check, self.out))
        with answers.writing():
            before = len(answers.done)
            working = Working(
                self.source,
                min(self.found.count, self.limit or self.found.count),
                engine,
                self.rows,
                asking,
                answering,
                answers,
                progress,
            )
            seconds = working.through()
            if _is_parquet(self.out):
                parquet.write(self.out, columns.rows(answers.read(), self.form), columns.of(self.form))
            elif self.in_order:
                answers.sort()
        failed = len(answers.failed)
        return BatchSummary(
            path=self.out,
            prompts=self.found.count,
            answered=len(answers.done) - failed,
            failed=failed,
            before=before,
            tokens=working.tokens,
            seconds=seconds,
        )


def prepare(
    prompts: Path,
    out: Path,
    *,
    name: str,
    recipe: Recipe | str | None = None,
    seed: int = 0,
    limit: int | None = None,
    rows: int = 8,
    chat: bool = False,
    in_order: bool = True,
    plain: bool = False,
) -> Batch:
    """Look a file of prompts over and check all that can be checked without a model."""
    check_int("batch", "rows", rows, minimum=1)
    if limit is not None:
        check_int("batch", "limit", limit, minimum=1)
    for word, value in {"chat": chat, "in_order": in_order, "plain": plain}.items():
        check_choice("batch", word, value, True, False)
    chosen = Recipe.coerce(recipe)
    source = Source(prompts)
    _check_out(out, prompts)
    found = survey(source, chat=chat)
    check_int("batch", "seed", seed, minimum=-MAX_SEED, maximum=MAX_SEED - found.count)
    form: Form = "lines" if plain else found.form
    return Batch(source, found, out, name, chosen, form, seed, limit, rows, chat, in_order)


def run(
    engine: Engine,
    prompts: Path | str,
    out: Path | str,
    *,
    name: str,
    recipe: Recipe | str | None = None,
    seed: int = 0,
    limit: int | None = None,
    rows: int = 8,
    chat: bool = False,
    in_order: bool = True,
    plain: bool = False,
    progress: Progress = lambda state: None,
) -> BatchSummary:
    """Answer a file of prompts (.jsonl or .parquet, ours or OpenAI's batch input) into another.

    Lines are appended as answers come. A run that was stopped or killed goes on where it was: call it again;
    answers of another run are refused. `name` is what the model is called, in requests and for the run to be
    known by. A line without a seed of its own gets `seed` plus its index. `rows` prompts are decoded at once
    by a worker; with `limit` only the first lines are asked. `chat` wraps text in the chat template. With
    `in_order` lines stand in the order of the prompts at the end; `plain` writes our lines for OpenAI's
    input, too.
    """
    batch = prepare(
        Path(prompts), Path(out), name=name, recipe=recipe, seed=seed, limit=limit, rows=rows, chat=chat,
        in_order=in_order, plain=plain,
    )  # fmt: skip
    return batch.run(engine, progress)


def journal_of(out: Path) -> Path:
    """Where lines are appended: the file, or one beside a Parquet file, which is written at the end."""
    return out.with_name(out.name + ".jsonl") if _is_parquet(out) else out


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in PARQUET


def _check_out(out: Path, prompts: Path) -> None:
    if out.suffix.lower() not in LINES + PARQUET:
        raise SettingError(
            f"{out} was given for the answers; end it in .jsonl (a line each) or .parquet (a row each)"
        )
    if out.exists() and out.samefile(prompts):
        raise SettingError(f"{out} holds the prompts; give the answers another file (--out)")
    check_folder(out.parent)
    if _is_parquet(out):
        parquet.check_installed()
        check_target(out)
        if out.exists() and not journal_of(out).exists():
            raise SettingError(
                f"{out} is there already, and nothing beside it says that it is ours; give another file with "
                "--out, or move it away"
            )
