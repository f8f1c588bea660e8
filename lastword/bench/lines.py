"""Lines: passes, blocks, probe, answers, mixed batches and widths of one model, each through public calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import lastword
from lastword.bench.meter import Activity, Meter, Timed
from lastword.bench.plain import PlainModel, plain_pass
from lastword.bench.record import Ceilings, Line
from lastword.bench.replay import Replay, lengths_for
from lastword.bench.shapes import draw
from lastword.bench.work import Work
from lastword.cache import Cache, DualCache, NoCache, PrefixCache
from lastword.canvas.cost import Work as Cost
from lastword.checks import MOST_SLOTS
from lastword.generation import Generation
from lastword.length import Fixed, LengthPolicy
from lastword.models.native import NativeModel
from lastword.recipe.recipe import Recipe
from lastword.unmask import EqualShares, MostConfident

FEW, MANY, MANY_IN_BLOCK = 2, 6, 16  # passes over a window; a line of passes is the difference
MIXED_PACE = 4.0  # tokens a pass
NARROWEST = 1024  # columns of the first width


@dataclass(frozen=True)
class Settings:
    """What is measured, in columns and tokens."""

    prompt: int = 900
    canvas: tuple[int, ...] = (1024, 256)  # slots of full passes; the probe reads the most of them
    horizon: int = 278  # slots of a whole answer
    block: int = 32
    pace: int | float = 3.25  # tokens a pass in a whole answer
    rows: int = 16  # of a mixed batch
    prompts: tuple[int, int] = (200, 1100)  # of a mixed batch, shortest and longest
    predicted: int = 256  # slots of a mixed batch's rows, on average
    columns: int = 16384  # the widest pass


def caches() -> dict[str, Cache]:
    """Every block cache by name; with the prompt kept, if the dual cache has a setting for it."""
    found: dict[str, Cache] = {"none": NoCache(), "prefix": PrefixCache(), "dual": DualCache()}
    kept = [field for field in dataclasses.fields(DualCache) if field.name.startswith("prompt")]
    if kept:
        longest: Any = True if isinstance(kept[0].default, bool) else MOST_SLOTS
        make: Callable[..., Cache] = DualCache
        found["dual, prompt kept"] = make(**{kept[0].name: longest})
    return found


@dataclass(frozen=True)
class Bench:
    """One model with random weights, and what measures it."""

    model: NativeModel
    meter: Meter
    settings: Settings
    ceilings: Ceilings

    def passes(self) -> Iterator[Line]:
        """Full passes: the bare model, and what one more pass of the loop takes."""
        prompt, horizon = self.settings.prompt, self.settings.horizon
        for slots in dict.fromkeys((*self.settings.canvas, horizon)):
            yield self._bare(slots)
            yield self._in_loop(
                "passes", prompt, slots, NoCache(), None, f"in the loop, {slots} slots"
            )

    def blocks(self) -> Iterator[Line]:
        """Passes within a block over prompt and horizon, under each cache."""
        block, keys = self.settings.block, self.settings.prompt + self.settings.horizon
        for name, cache in caches().items():
            case = f"{name}, {block} columns over {keys}"
            yield self._in_loop("blocks", max(1, keys - 2 * block), 2 * block, cache, block, case)

    def probe(self) -> Iterator[Line]:
        """A length prediction, beside a bare pass over the same columns."""
        slots = max(self.settings.canvas)
        prompt = self._prompt(self.settings.prompt)
        bare = self._bare(slots)

        def call() -> object:
            return lastword.predict_length(self.model, prompt, limit=slots, beyond_positions=True)

        timed, activity = self.meter.median(call), self.meter.activity(call)
        width = len(prompt) + slots
        line = self._pass("probe", f"{slots} slots", timed, activity, Work(width, width**2, slots))
        yield line.model_copy(update={"ratio": timed.ms / bare.ms if bare.ms else None})

    def answers(self) -> Iterator[Line]:
        """Whole answers under each cache, without the probe and with it."""
        prompt, slots = self._prompt(self.settings.prompt), self.settings.horizon
        for name, cache in caches().items():
            for probed in (False, True):

                def call(probed: bool = probed, cache: Cache = cache) -> list[Generation]:
                    if probed:
                        limit = max(self.settings.canvas)
                        lastword.predict_length(
                            self.model, prompt, limit=limit, beyond_positions=True
                        )
                    return [self._generate(prompt, slots, self.settings.pace, cache)]

                case = f"{name}, probe included" if probed else name
                yield self._whole("answers", case, call, [slots], extra_passes=int(probed))

    def mixed(self) -> Iterator[Line]:
        """A batch of unequal prompts whose lengths are replayed, under the dual cache."""
        rows, (least, most) = self.settings.rows, self.settings.prompts
        prompts = [
            self._prompt(least + (most - least) * row // max(1, rows - 1)) for row in range(rows)
        ]
        lengths = lengths_for(rows, self.settings.predicted)
        length = Replay.of(prompts, lengths)
        for name, cache in caches().items():
            if isinstance(cache, DualCache):

                def call(cache: Cache = cache) -> list[Generation]:
                    return self._generate(prompts, length, MIXED_PACE, cache)

                useful = [row.useful for row in lengths]
                line = self._whole("mixed", name, call, useful)
                computed = computed_columns(self.model, call)
                # Passes that replay a graph are not seen: then the share is not known here.
                share = line.columns / computed if line.columns and computed else 2.0
                yield line.model_copy(update={"useful_columns": share if share <= 1 else None})

    def widths(self) -> Iterator[Line]:
        """Full passes from a thousand columns to the widest, doubling: time and memory as they grow."""
        widest = self.settings.columns
        halvings = max(0, int(math.log2(widest / NARROWEST))) if widest > NARROWEST else 0
        for width in (widest >> step for step in range(halvings, -1, -1)):
            slots = max(FEW, min(max(self.settings.canvas), width // 2))
            case = f"{width} columns"
            yield self._in_loop("widths", width - slots, slots, NoCache(), None, case)

    def plain(self) -> Iterator[Line]:
        """The authors' loop as they describe it, a pass timed and the answer extrapolated."""
        shape, slots = self.model.network.shape, max(self.settings.canvas)
        with torch.device("meta"):
            empty = PlainModel(shape)
        weight = self.model.network.norm.weight
        plain: Any = draw(empty, self.meter.device, weight.dtype)
        mask = self.model.ids.mask
        tokens = torch.tensor(
            [self._prompt(self.settings.prompt) + [mask] * slots], device=self.meter.device
        )

        def call() -> object:
            return plain_pass(plain, tokens, mask)

        timed, activity = self.meter.median(call), self.meter.activity(call)
        width = tokens.shape[1]
        case = f"{slots} slots, one token a pass"
        line = self._pass("plain", case, timed, activity, Work(width, width**2, width))
        seconds = timed.ms * slots / 1000
        yield line.model_copy(
            update={
                "seconds": seconds,
                "passes": slots,
                "tokens": slots,
                "tokens_per_second": slots / seconds,
                "tokens_per_forward": 1.0,
            }
        )

    def _prompt(self, length: int) -> list[int]:
        """So many tokens, the same ones every time."""
        generator = torch.Generator().manual_seed(length)
        return torch.randint(0, self.model.ids.end, (length,), generator=generator).tolist()

    def _generate(
        self,
        prompt: Any,
        length: int | LengthPolicy,
        pace: int | float,
        cache: Cache,
        block: int | None = -1,
    ) -> Any:
        recipe = Recipe(
            length=Fixed(length) if isinstance(length, int) else length,
            unmask=MostConfident(EqualShares(pace)),
            cache=cache,
            block=self.settings.block if block == -1 else block,
        )
        return lastword.generate(self.model, prompt, recipe=recipe, beyond_positions=True)

    def _bare(self, slots: int) -> Line:
        """The model alone, the head on the answer's columns."""
        tokens = torch.tensor(
            [self._prompt(self.settings.prompt) + [self.model.ids.mask] * slots],
            device=self.meter.device,
        )
        width = tokens.shape[1]
        read = torch.arange(self.settings.prompt, width, device=self.meter.device)[None]

        def call() -> object:
            return self.model(tokens, read)

        timed, activity = self.meter.median(call), self.meter.activity(call)
        work = Work(width, width**2, slots)
        return self._pass("passes", f"bare model, {slots} slots", timed, activity, work)

    def _in_loop(
        self, line: str, prompt: int, slots: int, cache: Cache, block: int | None, case: str
    ) -> Line:
        """One more pass over a window: a run with many passes a window less one with few.

        What a run does once, and what it does where a block opens, is in both.
        """
        tokens, window = self._prompt(prompt), block or slots
        few, many = min(FEW, window - 1), min(MANY_IN_BLOCK if block else MANY, window)

        costs: dict[int, Cost] = {}

        def run(passes: int) -> None:
            answer: Generation = self._generate(tokens, slots, window / passes, cache, block)
            costs[passes] = answer.cost

        by = slots // window * (many - few)
        timed, activity = self.meter.difference(lambda: run(few), lambda: run(many), by)
        less, more = costs[few], costs[many]
        # Masks fall evenly from the window's size to none, so half of them are read on average.
        work = Work(
            (more.columns - less.columns) / by, (more.squares - less.squares) / by, window / 2
        )
        return self._pass(line, case, timed, activity, work)

    def _pass(
        self, line: str, case: str, timed: Timed, activity: Activity | None, work: Work
    ) -> Line:
        return Line(
            line=line,
            case=case,
            runs=timed.runs,
            ms=timed.ms,
            columns=float(work.columns),
            peak_mb=timed.peak_mb,
            **self._rates(timed.ms, work, 1, 1),
            **_device(activity, timed.ms, 1),
        )

    def _whole(
        self,
        line: str,
        case: str,
        call: Callable[[], list[Generation]],
        useful: Sequence[int],
        *,
        extra_passes: int = 0,
    ) -> Line:
        """An answer or a batch, from prompt to the last token."""
        answers: list[Generation] = []

        def kept() -> None:
            answers[:] = call()

        timed = self.meter.median(kept)
        costs = [answer.cost for answer in answers]
        passes = max(cost.passes for cost in costs) + extra_passes
        spent = sum(cost.passes for cost in costs) + extra_passes * len(costs)
        columns, squares = (
            sum(cost.columns for cost in costs),
            sum(cost.squares for cost in costs),
        )
        tokens, seconds = sum(useful), timed.ms / 1000
        activity = None if extra_passes else self.meter.activity(call)
        read = spent * self.settings.block / 2
        rates = (
            {}
            if extra_passes
            else self._rates(timed.ms, Work(columns, squares, read), passes, spent)
        )
        return Line(
            line=line,
            case=case,
            rows=len(answers),
            runs=timed.runs,
            ms=timed.ms / passes,
            seconds=seconds,
            passes=passes,
            tokens=tokens,
            columns=float(columns),
            peak_mb=timed.peak_mb,
            tokens_per_second=tokens / seconds,
            tokens_per_forward=tokens / spent,
            **rates,
            **_device(activity, timed.ms, passes),
        )

    def _rates(self, ms: int | float, work: Work, passes: int, row_passes: int) -> dict[str, Any]:
        """Arithmetic and traffic by time, and as shares of the ceilings."""
        if ms <= 0:  # a difference within the noise
            return {}
        tflops = work.flops(self.model.network.shape) / ms / 1e9
        gbs = work.traffic(self.model, passes, row_passes) / ms / 1e6
        return {
            "tflops": tflops,
            "gbs": gbs,
            "compute_share": tflops / self.ceilings.tflops,
            "memory_share": gbs / self.ceilings.gbs,
        }


def _device(activity: Activity | None, ms: int | float, passes: int) -> dict[str, Any]:
    """Launches and kernels a pass, and the share of the time in which the device worked."""
    if activity is None or ms <= 0:
        return {}
    return {
        "launches": max(0.0, activity.launches / passes),
        "kernels": max(0.0, activity.kernels / passes),
        "busy": min(1.0, max(0.0, activity.busy_ms / ms)),
    }


def computed_columns(model: NativeModel, call: Callable[[], object]) -> int:
    """Columns that went through the model's first layer during a call, padding included."""
    seen = 0

    def count(module: object, given: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += given[0].numel() // model.network.shape.width

    handle = model.network.blocks[0].register_forward_pre_hook(count)
    try:
        call()
    finally:
        handle.remove()
    return seen


LINES: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "passes": Bench.passes,
    "blocks": Bench.blocks,
    "probe": Bench.probe,
    "answers": Bench.answers,
    "mixed": Bench.mixed,
    "widths": Bench.widths,
    "plain": Bench.plain,
}
