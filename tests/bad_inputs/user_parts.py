"""Decodes with user-defined parts that break their contract; run in a plain interpreter.

Reads rows of a kind of part and the code of what it returns, as JSON, and prints the class and message of each error.
"""

import json
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch

import lastword
from lastword.models.storage import KVStorage
from lastword.policies.cache import CacheTraits
from lastword.policies.commit import CommitTraits
from lastword.policies.length.policy import LengthTraits
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.rule import UnmaskTraits

warnings.filterwarnings("ignore")

SECONDS = 60  # of one row; a decoding that never ends is stopped then
MEMORY = 8 * 2**30  # bytes of address space
TOY = lastword.load("toy")
PROMPTS = [[1, 2], [3, 4, 5]]
SCOPE = {
    "lastword": lastword, "torch": torch, "np": np, "toy": TOY, "replace": replace, "inf": float("inf"),
    "nan": float("nan"), "KVStorage": KVStorage, "SimpleNamespace": SimpleNamespace, "Plan": lastword.Plan,
    "CacheTraits": CacheTraits, "CommitTraits": CommitTraits, "LengthTraits": LengthTraits,
    "UnmaskTraits": UnmaskTraits,
}  # fmt: skip

# The parameters of each method, besides self; the code of a row may use them.
METHODS = {
    "choose": "prediction, open_masks, clock, state",
    "initial_state": "canvas",
    "visible_columns": "canvas, clock, state",
    "max_passes": "masks",
    "ready": "prediction, canvas, clock",
    "prepare": "canvas",
    "stale": "canvas, clock",
    "create_storage": "canvas",
    "plan": "probe",
    "revise": "canvas, prediction, clock, state",
    "resolved": "limits",
    "quota": "remaining, clock",
    "steps": "masks",
    "interpretation": "signal",
    "estimate": "lengths",
    "logits": "step, canvas, columns, logits",
    "tokens": "step, canvas",
    "forward": "tokens",
    "model": "tokens, read, valid",
    "encode": "text",
    "chat": "messages",
    "decode": "ids",
}


def part(base: type, **members: object) -> object:
    """An instance of a user's class with these members."""
    return dataclass(frozen=True)(type(f"My{base.__name__}", (base,), members))()


def method(name: str, code: str) -> Callable[..., object]:
    return eval(f"lambda self, {METHODS[name]}: {code}", SCOPE)


def function(name: str, code: str) -> Callable[..., object]:
    return eval(f"lambda {METHODS[name]}: {code}", SCOPE)


def choose_first(self, prediction, open_masks, clock, state):
    return open_masks, state


def rule(**members: object) -> object:
    return part(lastword.UnmaskRule, **{"choose": choose_first, **members})


def policy(**members: object) -> object:
    return part(lastword.LengthPolicy, **{"plan": method("plan", "Plan(torch.full((probe.num_rows,), 4))"), **members})


def tokenizer(**members: Callable[..., object]) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "bos": None,
            "chat_template": None,
            "encode": lambda text: [1],
            "chat": lambda messages, continue_last=False: [1],
            "decode": lambda ids: "a",
            **members,
        }
    )


class Model(lastword.Toy):
    """A model of a user's class."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward

    def __call__(self, tokens, read=None, *, valid=None, stale=None, storage=None):
        return self.forward(tokens, read, valid)


def settings(kind: str, code: str) -> dict[str, object]:
    """The options of `generate` for a row."""
    fixed = {"length": "fixed:4"}
    if kind in ("choose", "initial_state", "visible_columns"):
        return fixed | {"unmask": rule(**{kind: method(kind, code)})}
    if kind == "max_passes":
        scheduled = rule(max_passes=method(kind, code), traits=UnmaskTraits(follows_schedule=True))
        return {"unmask": scheduled, "length": "budget:(fixed:4),max_passes=99"}
    if kind == "max_idle":
        scheduled = rule(
            choose=method("choose", "(open_masks & False, state)"),
            max_passes=method("max_passes", code),
            traits=UnmaskTraits(follows_schedule=True),
        )
        return fixed | {"unmask": scheduled}
    if kind in ("ready", "prepare"):
        members = {"ready": method("ready", "canvas.horizon > 99"), kind: method(kind, code)}
        return fixed | {"commit": part(lastword.CommitRule, **members)}
    if kind in ("stale", "create_storage"):
        members = {
            "stale": method("stale", "canvas.valid"),
            "create_storage": method("create_storage", "KVStorage(*canvas.tokens.shape)"),
            kind: method(kind, code),
        }
        return fixed | {"cache": part(lastword.Cache, **members)}
    if kind in ("plan", "revise", "resolved"):
        return {"length": policy(**{kind: method(kind, code)})}
    if kind == "wrapped":
        return {"length": StopAtEnd(policy(plan=method("plan", code)))}
    if kind == "wrapped_revise":
        return {"length": StopAtEnd(policy(revise=method("revise", code)))}
    if kind in ("quota", "steps"):
        members = {"quota": method("quota", "remaining"), kind: method(kind, code)}
        return fixed | {"unmask": lastword.MostConfident(part(lastword.Schedule, **members))}
    if kind == "interpretation":
        interpretation = part(lastword.Interpretation, __call__=method(kind, code))
        return {"length": lastword.Survival(8, interpretation=interpretation)}
    if kind == "estimate":
        return {"length": lastword.Survival(8, estimate=function(kind, code))}
    if kind in ("logits", "tokens"):
        return fixed | {"hooks": lastword.Hooks(**{kind: function(kind, code)})}
    if kind in ("rule_traits", "commit_traits", "cache_traits", "length_traits"):
        value = eval(code, SCOPE)
        traits = property(lambda self: value)
        if kind == "rule_traits":
            return fixed | {"unmask": rule(traits=traits)}
        if kind == "commit_traits":
            ready = method("ready", "canvas.horizon > 99")
            return fixed | {"commit": part(lastword.CommitRule, ready=ready, traits=traits)}
        if kind == "length_traits":
            return {"length": policy(traits=traits)}
        stale, storage = method("stale", "canvas.valid"), method("create_storage", "None")
        return fixed | {"cache": part(lastword.Cache, stale=stale, create_storage=storage, traits=traits)}
    return fixed | eval(f"dict({code})", SCOPE)


def run(kind: str, code: str) -> object:
    if kind == "forward":
        model = lastword.Adapter(function(kind, code), TOY.ids)
        return lastword.generate(model, PROMPTS, length="fixed:4")
    if kind == "model":
        return lastword.generate(Model(function(kind, code)), PROMPTS, length="fixed:4")
    if kind in ("encode", "chat", "decode"):
        functions = {kind: function(kind, code)}
        if kind == "chat":
            functions = {"chat_template": "x", "chat": lambda messages, continue_last=False: eval(code, SCOPE)}
        model = lastword.Adapter(lambda t: torch.ones(*t.shape, 29), TOY.ids, tokenizer=tokenizer(**functions))
        return lastword.generate(model, "abc", length="fixed:4")
    if kind == "eval":
        return eval(code, SCOPE)
    model = lastword.load("tiny-llada-base") if kind in ("stale", "create_storage") else TOY
    return lastword.generate(model, PROMPTS, **settings(kind, code))


def stop(*_: object) -> None:
    raise TimeoutError(f"it ran for {SECONDS} s")


def main() -> None:
    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes = []
    for kind, code in json.load(sys.stdin):
        signal.alarm(SECONDS)
        try:
            run(kind, code)
            outcome = "no error", ""
        except lastword.LastwordError as error:
            outcome = type(error).__name__, str(error)
        except Exception as error:
            outcome = f"raw {type(error).__name__}: {error}", ""
        signal.alarm(0)
        outcomes.append(outcome)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
