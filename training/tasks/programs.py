"""Small Python programs of one shape: go over items, keep some, change them, gather the results.

The same pipeline can be written in many ways; `body` draws a style and returns the requests of the prompt for
it. Templates contain the item as `{x}`, the value as `{v}`, the result as `{r}` and the source as `{s}`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from training.tasks import requests

INDENT = "    "


@dataclass(frozen=True)
class Part:
    """A piece of a program: its description, a short name, and its code."""

    words: str
    short: str
    code: str


@dataclass(frozen=True)
class Gather:
    """The aggregation of values: in a loop (`start`, `update`, `finish`) or in one expression (`whole`)."""

    words: str
    short: str
    start: str
    update: str
    finish: str
    whole: str
    type: str


LIST = Gather("the list of {}", "list", "[]", "{r}.append({v})", "{r}", "[{each}]", "list")
SUM = Gather("the sum of {}", "sum", "0", "{r} += {v}", "{r}", "sum({each})", "int")
COUNT = Gather("the count of {}", "count", "0", "{r} += 1", "{r}", "len([{each}])", "int")
LARGEST = Gather(
    "the largest of {}, or 0 if there are none", "largest", "[]", "{r}.append({v})",
    "max({r}, default=0)", "max([{each}], default=0)", "int",
)  # fmt: skip
SMALLEST = Gather(
    "the smallest of {}, or 0 if there are none", "smallest", "[]", "{r}.append({v})",
    "min({r}, default=0)", "min([{each}], default=0)", "int",
)  # fmt: skip
SORTED = Gather(
    "the sorted list of {}", "sorted", "[]", "{r}.append({v})",
    "sorted({r})", "sorted([{each}])", "list",
)  # fmt: skip
JOINED = Gather("{} joined together", "join", '""', "{r} += {v}", "{r}", '"".join([{each}])', "str")
UNIQUE = Gather(
    "the sorted list of different values among {}", "unique", "[]", "{r}.append({v})",
    "sorted(set({r}))", "sorted({{{each}}})", "list",
)  # fmt: skip

NAMES = {"x": ("x", "item", "n"), "r": ("result", "out", "total"), "kept": ("kept", "chosen"), "v": ("new", "changed")}


@dataclass(frozen=True)
class Pipeline:
    """A program. Without `keep.code` all items are used, without `change.code` they stay unchanged."""

    source: Part
    keep: Part
    change: Part
    gather: Gather

    @property
    def sentence(self) -> str:
        """The description of the returned value, for a docstring or a prompt."""
        return self.gather.words.format(self.change.words.format(self.keep.words.format(self.source.words)))

    @property
    def name(self) -> str:
        """A function name that describes the program."""
        parts = (self.gather.short, self.keep.short, self.change.short, self.source.short)
        return "_".join(part for part in parts if part)

    def run(self, argument: Any, parameter: str) -> Any:
        """Return the correct result for an argument, computed by the shortest form of the program."""
        return eval(_compiled(self._whole(self.source.code.format(s=parameter), "x")), {parameter: argument})

    def _whole(self, source: str, x: str) -> str:
        return self.gather.whole.format(each=_each(self.change.code, x, source, self.keep.code))

    def body(self, rng: random.Random, parameter: str) -> tuple[str, str]:
        """Return a function body in a random style and the requests of the prompt for that style."""
        style = rng.choice(tuple(STYLES))
        name = {role: rng.choice(options) for role, options in NAMES.items()}
        plans, speaks, guards = (rng.random() < chance for chance in (0.2, 0.35, 0.25))
        met = [requests.PLAN] * plans + [requests.COMMENT] * speaks + [requests.GUARD] * guards
        requested = requests.draw_requests(rng, STYLES[style], *met)
        lines: list[str] = self._plan() if plans else []
        if guards:
            lines += ["# Nothing to do for an empty input."] * speaks
            empty = {"list": "[]", "int": "0", "str": '""'}[self.gather.type]
            lines += [f"if not {parameter}:", f"{INDENT}return {empty}"]
        lines += style(self, self.source.code.format(s=parameter), name, speaks)
        return "\n".join(INDENT + line for line in lines), requested

    def _plan(self) -> list[str]:
        steps = [f"Look at {self.keep.words.format(self.source.words)}."]
        if self.change.code:
            steps.append(f"Take {self.change.words.format('them')}.")
        steps.append(f"Return {self.gather.words.format('them')}.")
        return ["# Plan:", *(f"# {i}. {step}" for i, step in enumerate(steps, 1))]


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<pipeline>", "eval")


def _each(change: str, x: str, source: str, keep: str) -> str:
    value = change.format(x=x) or x
    return f"{value} for {x} in {source}" + (f" if {keep.format(x=x)}" if keep else "")


def _one_line(p: Pipeline, source: str, name: dict[str, str], speaks: bool) -> list[str]:
    comment = [f"# This is {p.sentence}."] * speaks
    return [*comment, f"return {p._whole(source, name['x'])}"]


def _stages(p: Pipeline, source: str, name: dict[str, str], speaks: bool) -> list[str]:
    x, kept, r = name["x"], name["kept"], name["r"]
    lines = ["# First choose the items."] * speaks
    lines.append(f"{kept} = [{_each('', x, source, p.keep.code)}]")
    if p.change.code:
        lines += ["# Then change each of them."] * speaks
        lines.append(f"{r} = [{_each(p.change.code, x, kept, '')}]")
        kept = r
    lines += ["# Last put them together."] * speaks
    whole = p.gather.whole.format(each=f"{x} for {x} in {kept}")
    return [*lines, f"return {whole}"]


def _loop(p: Pipeline, source: str, name: dict[str, str], speaks: bool) -> list[str]:
    x, r = name["x"], name["r"]
    lines = ["# Start with nothing."] * speaks + [f"{r} = {p.gather.start}", f"for {x} in {source}:"]
    pad = INDENT
    if p.keep.code:
        lines += [f"{pad}# Keep only the right items."] * speaks + [f"{pad}if {p.keep.code.format(x=x)}:"]
        pad += INDENT
    lines.append(pad + p.gather.update.format(r=r, v=p.change.code.format(x=x) or x))
    return [*lines, f"return {p.gather.finish.format(r=r)}"]


def _skipping_loop(p: Pipeline, source: str, name: dict[str, str], speaks: bool) -> list[str]:
    x, r, v = name["x"], name["r"], name["v"]
    lines = ["# Go over the items one by one."] * speaks + [f"{r} = {p.gather.start}", f"for {x} in {source}:"]
    if p.keep.code:
        lines += [f"{INDENT}# Skip what does not count."] * speaks
        lines += [f"{INDENT}if not ({p.keep.code.format(x=x)}):", f"{INDENT * 2}continue"]
    if p.change.code:
        lines.append(f"{INDENT}{v} = {p.change.code.format(x=x)}")
        x = v
    lines += [f"{INDENT}# Add it to the result."] * speaks
    lines.append(INDENT + p.gather.update.format(r=r, v=x))
    return [*lines, f"return {p.gather.finish.format(r=r)}"]


def _counting_loop(p: Pipeline, source: str, name: dict[str, str], speaks: bool) -> list[str]:
    x, r, v = name["x"], name["r"], name["v"]
    lines = ["# Walk along the items by index."] * speaks
    lines += [f"items = list({source})", f"{r} = {p.gather.start}", "i = 0", "while i < len(items):"]
    lines.append(f"{INDENT}{x} = items[i]")
    pad = INDENT
    if p.keep.code:
        lines += [f"{pad}# Check if this one counts."] * speaks + [f"{pad}if {p.keep.code.format(x=x)}:"]
        pad += INDENT
    if p.change.code:
        lines.append(f"{pad}{v} = {p.change.code.format(x=x)}")
        x = v
    lines.append(pad + p.gather.update.format(r=r, v=x))
    lines += [f"{INDENT}# Move to the next item."] * speaks + [f"{INDENT}i += 1"]
    return [*lines, f"return {p.gather.finish.format(r=r)}"]


STYLES = {
    _one_line: requests.ONE_LINE,
    _stages: requests.STAGES,
    _loop: requests.LOOP,
    _skipping_loop: requests.SKIP,
    _counting_loop: requests.INDEX,
}


def informative(p: Pipeline, parameter: str, arguments: Sequence[Any], count: int) -> list[Any]:
    """Return the `count` most informative arguments: different results first, empty results last."""
    results: dict[str, Any] = {}
    for argument in arguments:
        results.setdefault(repr(p.run(argument, parameter)), argument)
    different = sorted(results.items(), key=lambda item: item[0] in ("[]", "0", "''"))
    chosen = [argument for _, argument in different]
    return (chosen + [a for a in arguments if a not in chosen])[:count]


def asserts(p: Pipeline, function: str, parameter: str, arguments: Sequence[Any]) -> list[str]:
    """Return one assert per argument, with the correct result."""
    return [f"assert {function}({argument!r}) == {p.run(argument, parameter)!r}" for argument in arguments]
