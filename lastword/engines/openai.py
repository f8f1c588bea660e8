"""OpenAI: any server that speaks OpenAI's API answers: ours, vLLM, SGLang.

Our own is told the whole recipe and says what answers took. Of any other nothing is known but its texts: it
decodes as it likes, a fixed canvas is its cap on tokens, and a record says that nobody counted passes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from lastword.canvas.cost import TokenCost
from lastword.canvas.tokens import TokenIds
from lastword.engines.base import TOO_LONG, GenerationReply, GenerationRequest, Key, ModelInfo, ReplyDetails
from lastword.engines.http import Http, Refusal
from lastword.engines.processes import MAX_WORKERS
from lastword.errors import EngineError, SettingError
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS, check_int
from lastword.version import __version__

KEY = "LASTWORD_API_KEY"  # of the environment; no other key is ever sent
UNKNOWN = "unknown"
TOO_LONG_CODE = "context_length_exceeded"


class Unread:
    """A tokenizer that is with the server: prompts go there as text."""

    bos = None

    def __init__(self, *, chat: bool) -> None:
        self.chat_template = "the server's" if chat else None

    def encode(self, text: str) -> list[int]:
        return []

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        return []

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        raise SettingError("the tokenizer is with the server, so ids cannot be read here")


@dataclass(frozen=True)
class ServedModel:
    """What a server says of a model; nothing of one that is not ours."""

    ours: bool
    chat: bool = True
    slots: int = MAX_SLOTS
    positions: int = MAX_SLOTS
    weights: str = UNKNOWN
    dtype: str = UNKNOWN
    hardware: str = UNKNOWN

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> ServedModel:
        """From an entry of /v1/models."""
        limits = told.get("lastword")
        if not isinstance(limits, dict):
            return cls(ours=False)
        known = {name: limits[name] for name in cls.__dataclass_fields__ if name in limits}
        return cls(ours=True, **known)


class OpenAIEngine:
    """An engine behind a URL; `requests` are under way at once, or else as many as rows are asked for.

    429 and 503 are tried again after as long as the server says, within `patience` seconds. A request the
    server refuses fails that question alone; a server that is gone, or wants a key, stops the run.
    """

    def __init__(
        self, base_url: str, name: str, *, requests: int | None = None, patience: float = 600.0
    ) -> None:
        if requests is not None:
            check_int("OpenAI", "requests", requests, minimum=1, maximum=MAX_WORKERS)
        self.name, self.requests = name, requests
        self.http = Http(base_url, os.environ.get(KEY), patience)

    def __enter__(self) -> OpenAIEngine:
        return self

    def __exit__(self, *left_by: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self.http.close()

    @cached_property
    def served(self) -> ServedModel:
        """What the server says of the model."""
        try:
            found = self.http.get("/models").get("data")
        except Refusal as refused:
            raise EngineError(str(refused)) from refused
        entries = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        for entry in entries:
            if entry.get("id") == self.name:
                return ServedModel.of(entry)
        names = ", ".join(str(entry.get("id")) for entry in entries[:9]) or "no model"
        raise EngineError(
            f"{self.http.base} serves {names}, and {self.name} was asked for; give --model one of these names"
        )

    @cached_property
    def model(self) -> ModelInfo:
        """What is known of it here: limits, and that its tokenizer is with the server."""
        told = self.served
        return ModelInfo(
            ids=TokenIds(mask=0, end=1, pad=1, vocab_size=2),
            max_seq_len=told.positions,
            default_max_new_tokens=told.slots,
            calibration=None,
            supports_cache=True,
            tokenizer=Unread(chat=told.chat),
            fingerprint=told.weights,
            model_key=None,
            dtype=told.dtype,
            versions={"lastword": __version__},
        )

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """Replies one by one, as they come."""
        if not requests:
            return
        self._check_recipe(recipe)
        left = iter(requests.items())
        at_once = self.requests or max_batch_size
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="lastword request")
        out: set[Future[GenerationReply[Key]]] = set()
        try:
            while True:
                for key, question in islice(left, at_once - len(out)):
                    out.add(pool.submit(self._asked, key, question, recipe))
                if not out:
                    return
                done, out = wait(out, return_when=FIRST_COMPLETED)
                yield [one.result() for one in done]
        finally:
            self.http.stop()  # who waits to try again need not
            pool.shutdown(cancel_futures=True)
            self.http.go_on()

    def _check_recipe(self, recipe: Recipe) -> None:
        if not self.served.ours and not isinstance(recipe.length, Fixed):
            raise SettingError(
                f"{self.http.base} is no server of lastword's and decodes as it likes, so a record cannot "
                f"name {recipe.label()}; give --length fixed:N, which caps its answers at N tokens"
            )

    def _asked(self, key: Key, question: GenerationRequest, recipe: Recipe) -> GenerationReply[Key]:
        """One reply, or why there is none. A server that cannot be had raises."""
        said = question.prompt_text
        if isinstance(said, tuple) and said[-1]["role"] == "assistant":
            return GenerationReply(key, "", {}, "a chat server does not go on with an answer that was begun")
        body = self._body(question, recipe)
        path = "/chat/completions" if isinstance(said, tuple) else "/completions"
        try:
            told = self.http.post(path, body)
            return GenerationReply(key, _text(told), self._facts(told, question, recipe))
        except Refusal as refused:
            if refused.code == TOO_LONG_CODE:
                return GenerationReply(key, "", self._nothing(question))
            return GenerationReply(key, "", {}, str(refused))
        except (KeyError, IndexError, TypeError, ValueError) as strange:
            return GenerationReply(key, "", {}, f"the server's answer cannot be read ({strange!r:.200})")

    def _body(self, question: GenerationRequest, recipe: Recipe) -> dict[str, Any]:
        said = question.prompt_text
        body: dict[str, Any] = {"model": self.name, "seed": question.seed}
        if isinstance(said, tuple):
            body["messages"] = list(said)
        else:
            body["prompt"] = said if said is not None else question.prompt_ids
        if self.served.ours:
            body["recipe"] = json.loads(recipe.to_json())
            most = question.max_new_tokens
        else:
            body["temperature"] = recipe.sampling.temperature
            most = min(question.max_new_tokens or MAX_SLOTS, combined_traits(recipe.length).upper_bound)
        return body if most is None else body | {"max_tokens": most}

    def _facts(self, told: dict[str, Any], question: GenerationRequest, recipe: Recipe) -> ReplyDetails:
        (choice,), usage = told["choices"], told.get("usage") or {}
        ledger = choice.get("lastword") if self.served.ours else None
        length = usage.get("completion_tokens")
        facts = self._nothing(question) | {
            "prompt_tokens": usage.get("prompt_tokens", len(question.prompt_ids)),
            "horizon": combined_traits(recipe.length).upper_bound,  # the cap, where nobody says more
            "finish": "ended" if choice["finish_reason"] == "stop" else "truncated",
            "length": length,
            "seconds": round(told["seconds"], 6),
            "cost": None,
            "probe_cost": None,
        }
        if ledger:
            facts |= {
                "horizon": ledger["horizon"],
                "expected_length": ledger["predicted_length"],
                "cost": (ledger["forward_passes"], ledger["tokens_computed"]),  # the probe in it
                "seconds": ledger["seconds_decoding"],
            }
        if server := told.get("system_fingerprint"):
            facts["versions"] = {**facts["versions"], "server": str(server)[:100]}
        return facts

    def _nothing(self, question: GenerationRequest) -> ReplyDetails:
        """Of an answer that was not asked for, and what every other one begins with."""
        return {
            "prompt_tokens": len(question.prompt_ids),
            "horizon": 0,
            "expected_length": None,
            "tail": None,
            "probe_cost": TokenCost(0, 0, 0),
            "cost": TokenCost(0, 0, 0),
            "seconds": 0.0,
            "finish": TOO_LONG,
            "length": 0,
            "rows": 1,
            "batch_seconds": None,  # others were answered meanwhile
            "shortened": False,
            "hardware": f"{self.served.hardware}, behind {self.http.base}"[:1_000],
            "versions": {"lastword": __version__},
        }


def _text(told: dict[str, Any]) -> str:
    (choice,) = told["choices"]
    if choice["finish_reason"] not in ("stop", "length"):
        raise ValueError(f"finish_reason {choice['finish_reason']!r}")
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    if not isinstance(text, str):
        raise TypeError(f"an answer of type {type(text).__name__}")
    return text
