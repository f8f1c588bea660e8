"""Here: a model in this process answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lastword.api import Generation, build_generation
from lastword.cli.chatting.heard import (
    Added,
    Drawn,
    Ended,
    Heard,
    Turn,
    Wishes,
)
from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.errors import CapacityError, SettingError
from lastword.models.base import MaskPredictor, decode_text
from lastword.prompts import prompts_in_chat, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.serve.conversion import answer_details
from lastword.serve.detokenizer import IncrementalDetokenizer
from lastword.serve.request import RequestFinished, ServerRequest
from lastword.viz.frames import BatchTrace, Frame

SEEDS = 2**32


class Here:
    """Answers with a model that was loaded."""

    def __init__(self, model: MaskPredictor, name: str, recipe: Recipe, wishes: Wishes) -> None:
        if model.tokenizer is None:
            raise SettingError(
                f"{name} came without a tokenizer, so it cannot read what is typed; put its tokenizer "
                "files beside the weights"
            )
        self.name = name
        self._model, self._tokenizer, self._wishes = model, model.tokenizer, wishes
        self._recipe = _wished(recipe, wishes)
        self.chats = self._tokenizer.chat_template is not None
        self._last: Generation | None = None

    def ask(self, turns: Sequence[Turn], *, drawn: bool) -> Iterator[Heard]:
        given: Any = list(turns) if self.chats else turns[-1]["content"]
        (prompt,) = tokenize_prompts(self._model, given)
        positions = self._model.max_seq_len
        if len(prompt) >= positions:
            raise CapacityError(
                f"this takes {len(prompt)} tokens, and {self.name} has {positions} positions for it and the "
                "answer; say less"
            )
        yield from self._decoded(prompt, given, self._seed())

    def _decoded(self, prompt: list[int], given: Any, seed: int) -> Iterator[Heard]:
        model, most, began = self._model, self._wishes.most, time.perf_counter()
        traces, frames = BatchTrace(self._tokenizer, model.ids), list[Frame]()
        committed = IncrementalDetokenizer(self._tokenizer, model.ids)
        steps = decode(
            model,
            [prompt],
            self._recipe,
            generators=RowGenerators([seed], model.device),
            in_chat=prompts_in_chat(given),
            max_new_tokens=None if most is None else [most],
        )
        for step in steps:
            for _, frame in traces.of(step):
                frames.append(frame)
                yield Drawn(_texts(frame), frame.filled_at, frame.forward_passes, frame.end)
            if more := committed.read(step.canvas.answer_ids(0), complete=bool(step.finished)):
                yield Added(more)
            for done in step.finished:
                seconds = time.perf_counter() - began
                made = build_generation(model, done, step.recipe, prompt, seconds)
                asked = decode_text(self._tokenizer, prompt)
                self._last = replace(made, frames=tuple(frames), prompt_text=asked)
                cut = made.finish.name != "ENDED"
                answer = RequestFinished(made, committed.text, committed.count, cut, None, 0.0, seconds)
                job = ServerRequest(tuple(prompt), step.recipe, seed, most)
                yield Ended(committed.text, committed.count, answer_details(job, answer))

    def replay(self, path: Path) -> Path:
        if self._last is None:
            raise SettingError("there is no answer to replay yet; ask something first")
        return self._last.replay(path)

    def _seed(self) -> int:
        if self._wishes.seed is not None:
            return self._wishes.seed
        return secrets.randbelow(SEEDS) if self._recipe.sampling.temperature else 0


def _wished(recipe: Recipe, wishes: Wishes) -> Recipe:
    chosen = recipe.with_choices(length=wishes.length)
    if wishes.temperature is None:
        return chosen
    return replace(chosen, sampling=replace(chosen.sampling, temperature=wishes.temperature))


def _texts(frame: Frame) -> list[str | None]:
    return [None if token is None else text for token, text in zip(frame.tokens, frame.texts)]
