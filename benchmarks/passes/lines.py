"""The measurements: passes, blocks, probe, answers, mixed batches and widths, all through the public API."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

import lastword
from benchmarks.passes.meter import Activity, Meter
from benchmarks.passes.plain import PlainModel, plain_pass
from benchmarks.passes.record import Ceilings, PassLine
from benchmarks.passes.replay import Replay, kept_pairs, lengths_for
from benchmarks.passes.shapes import draw
from benchmarks.passes.totals import StepTotals
from benchmarks.passes.work import Work
from lastword.api import Generation
from lastword.bench import Timing
from lastword.decoding.forward import Hooks, TokenCost as Cost
from lastword.decoding.loop import Step, decode
from lastword.decoding.step import supports_static_shapes
from lastword.models.native import NativeModel
from lastword.policies.cache import Cache, DualCache, NoCache, PrefixCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe

# A forward pass of the decoding loop is the difference of two runs, which fill a window in few and in many passes.
# Both have more than the four passes after which a single row without a cache is captured as a CUDA graph.
FEW, WIDE, MANY, MANY_IN_BLOCK = 6, 10, 18, 22
MIXED_TOKENS_PER_PASS = 4.0
MAX_WIDTHS, MIN_TOKENS = 4, 1024  # the number of widths, and the tokens of the first unless `tokens` is smaller
PAIRS = 7  # probes and bare forward passes, alternating
WARM_STEPS = 4  # in which blocks start, kernels are compiled, and a CUDA graph is captured and replayed
CACHES: dict[str, tuple[str, Cache]] = {
    "none": ("none", NoCache()),
    "prefix": ("prefix", PrefixCache()),
    "dual": ("dual", DualCache()),
    "once": ("dual, prompt computed once", DualCache(prompt_every=0)),
}


@dataclass(frozen=True)
class Settings:
    """Sizes of the measurements."""

    prompt: int = 900
    canvas: tuple[int, ...] = (1024, 256)  # slots of full forward passes; the largest is the canvas of the probe
    horizon: int = 278  # slots of a whole answer
    block: int = 32
    tokens_per_pass: int | float = 3.25  # in a whole answer
    batch_size: int = 16  # of a mixed batch
    queue: int = 64  # prompts that are decoded in one running mixed batch
    prompts: tuple[int, int] = (200, 1100)  # shortest and longest prompt of a mixed batch
    predicted: int = 256  # mean slots of the rows of a mixed batch
    tokens: int = 16384  # of the widest forward pass
    caches: tuple[str, ...] = (*CACHES,)


@dataclass(frozen=True)
class Bench:
    """Measures a model with random weights; every method yields the lines of one kind."""

    model: NativeModel
    meter: Meter
    settings: Settings
    ceilings: Ceilings

    def passes(self) -> Iterator[PassLine]:
        """Measure full forward passes: of the bare model, and of the decoding loop."""
        longest, horizon = max(self.settings.canvas), self.settings.horizon
        for slots in dict.fromkeys((*self.settings.canvas, horizon)):
            yield self._bare(slots)
            case, trace = f"decoding loop, {slots} slots", slots == longest
            yield self._in_loop("passes", self.settings.prompt, slots, NoCache(), None, case, trace=trace)

    def blocks(self) -> Iterator[PassLine]:
        """Measure forward passes inside a block over prompt and horizon, with each cache."""
        block, keys = self.settings.block, self.settings.prompt + self.settings.horizon
        for name, cache in self._caches().items():
            case = f"{name}, {block} tokens of {keys}"
            yield self._in_loop(
                "blocks", max(1, keys - 2 * block), 2 * block, cache, block, case, trace=cache == DualCache()
            )

    def probe(self) -> Iterator[PassLine]:
        """Measure a length prediction, compared with a forward pass of the bare model over the same tokens."""
        slots = max(self.settings.canvas)
        prompt = self._prompt(self.settings.prompt)
        timed = self.meter.median(lambda: self._probe(prompt))
        line = self._pass("probe", f"{slots} slots", timed, None, self._probe_work())
        # Alternating, because a device slows down under load.
        bare_pass = self._bare_pass(slots)
        pairs = [
            (self.meter.time(lambda: self._probe(prompt)), self.meter.time(bare_pass))
            for _ in range(PAIRS if timed.ms < 1000 else 1)
        ]
        probes, bare = (statistics.median(times) for times in zip(*pairs))
        yield line.model_copy(update={"ratio": probes / bare if bare else None})

    def answers(self) -> Iterator[PassLine]:
        """Measure whole answers with each cache, with the probe and, if they are fast, without it."""
        for name, cache in self._caches().items():
            if not isinstance(cache, DualCache):
                yield self._answer(f"{name}, probe included", cache, probed=True, once=True)
                continue
            if cache == DualCache() and self._uses_graphs(cache):
                case = f"{name}, no CUDA graphs, probe included"
                yield self._answer(case, cache, probed=True, once=True, graphs=False)
            yield self._answer(name, cache)
            yield self._answer(f"{name}, probe included", cache, probed=True)

    def mixed(self) -> Iterator[PassLine]:
        """Measure batches of unequal prompts with replayed lengths, and a queue that is longer than the batch."""
        batch_size, queue = self.settings.batch_size, min(self.settings.queue, len(kept_pairs().pairs))
        dual = [(n, cache) for n, cache in self._caches().items() if isinstance(cache, DualCache)]
        for name, cache in dual:
            yield self._batch(name, cache, batch_size, batch_size)
        if queue > batch_size and dual:
            name, cache = dual[-1]
            yield self._batch(f"{name}, {queue} prompts in a batch of {batch_size}", cache, queue, batch_size)

    def widths(self) -> Iterator[PassLine]:
        """Measure time and memory of full forward passes whose width doubles up to the widest."""
        widest = self.settings.tokens
        halved = (widest >> step for step in range(MAX_WIDTHS - 1, 0, -1))
        for width in (*(width for width in halved if width >= MIN_TOKENS), widest):
            slots = max(FEW, min(max(self.settings.canvas), width // 2))
            once = replace(self, meter=replace(self.meter, repeats=1))
            case = f"{width} tokens"
            yield once._in_loop("widths", width - slots, slots, NoCache(), None, case, many=WIDE)

    def plain(self) -> Iterator[PassLine]:
        """Measure a forward pass of the loop that the authors describe, and extrapolate to an answer."""
        shape, slots = self.model.network.config, max(self.settings.canvas)
        with torch.device("meta"):
            empty = PlainModel(shape)
        weight = self.model.network.norm.weight
        plain: Any = draw(empty, self.meter.device, weight.dtype)
        mask = self.model.ids.mask
        tokens = torch.tensor([self._prompt(self.settings.prompt) + [mask] * slots], device=self.meter.device)
        timed = self.meter.median(lambda: plain_pass(plain, tokens, mask))
        width = tokens.shape[1]
        case = f"{slots} slots, one token per forward pass"
        line = self._pass("plain", case, timed, None, Work(width, width**2, width))
        seconds = timed.ms * slots / 1000
        yield line.model_copy(
            update={
                "seconds": seconds,
                "forward_passes": slots,
                "tokens": slots,
                "tokens_per_second": slots / seconds,
                "tokens_per_forward": 1.0,
            }
        )

    def _caches(self) -> dict[str, Cache]:
        return {name: cache for key, (name, cache) in CACHES.items() if key in self.settings.caches}

    def _prompt(self, length: int) -> list[int]:
        """Return a prompt of `length` tokens, the same in every run."""
        generator = torch.Generator().manual_seed(length)
        return torch.randint(0, self.model.ids.end, (length,), generator=generator).tolist()

    def _recipe(
        self, length: int | LengthPolicy, tokens_per_pass: int | float, cache: Cache, block: int | None = -1
    ) -> Recipe:
        return Recipe(
            length=Fixed(length) if isinstance(length, int) else length,
            unmask=MostConfident(EqualShares(tokens_per_pass)),
            cache=cache,
            block=self.settings.block if block == -1 else block,
        )

    def _uses_graphs(self, cache: Cache) -> bool:
        """Return whether forward passes inside a block are captured as CUDA graphs on this device."""
        recipe = self._recipe(self.settings.horizon, self.settings.tokens_per_pass, cache)
        return supports_static_shapes(self.meter.device, recipe, Hooks(), 1)

    def _generate(self, prompt: list[int], recipe: Recipe, **options: Any) -> Generation:
        return lastword.generate(self.model, prompt, recipe=recipe, exceed_max_seq_len=True, **options)

    def _decode(self, prompts: Sequence[list[int]], recipe: Recipe, batch_size: int) -> Iterator[Step]:
        return decode(
            self.model, prompts, recipe, exceed_max_seq_len=True, max_batch_size=batch_size, use_cuda_graphs=True
        )

    def _warm_up(self, prompts: Sequence[list[int]], recipe: Recipe, batch_size: int = 1) -> None:
        """Decode the first steps only."""
        for _ in islice(self._decode(prompts, recipe, batch_size), WARM_STEPS):
            pass

    def _probe(self, prompt: list[int]) -> object:
        limit = max(self.settings.canvas)
        return lastword.predict_length(self.model, prompt, limit=limit, exceed_max_seq_len=True)

    def _probe_work(self) -> Work:
        slots = max(self.settings.canvas)
        width = self.settings.prompt + slots
        return Work(width, width**2, slots)

    def _bare(self, slots: int) -> PassLine:
        """Measure the bare model, with logits of the answer only."""
        width = self.settings.prompt + slots
        timed = self.meter.median(self._bare_pass(slots))
        case = f"bare model, {slots} slots"
        return self._pass("passes", case, timed, None, Work(width, width**2, slots))

    def _bare_pass(self, slots: int) -> Callable[[], object]:
        tokens = torch.tensor(
            [self._prompt(self.settings.prompt) + [self.model.ids.mask] * slots], device=self.meter.device
        )
        read = torch.arange(self.settings.prompt, tokens.shape[1], device=self.meter.device)[None]
        return lambda: self.model(tokens, read)

    def _in_loop(
        self,
        line: str,
        prompt: int,
        slots: int,
        cache: Cache,
        block: int | None,
        case: str,
        *,
        many: int | None = None,
        trace: bool = False,
    ) -> PassLine:
        """Measure one more forward pass over a window: a run with many passes per window minus one with few.

        Work that a run does once, or at the start of a block, is in both and cancels.
        """
        tokens, window = self._prompt(prompt), block or slots
        usual = MANY_IN_BLOCK if isinstance(cache, DualCache) else MANY
        few, many = min(FEW, window - 1), min(many or usual, window)
        costs: dict[int, Cost] = {}

        def run(passes: int) -> None:
            recipe = self._recipe(slots, window / passes, cache, block)
            costs[passes] = self._generate(tokens, recipe).cost

        by = slots // window * (many - few)
        timed, activity = self.meter.difference(lambda: run(few), lambda: run(many), by, trace=trace)
        less, more = costs[few], costs[many]
        # The number of masks falls evenly from the size of the window to 0, so half of them are read on average.
        work = Work(
            (more.tokens_computed - less.tokens_computed) / by,
            (more.attention_pairs - less.attention_pairs) / by,
            window / 2,
        )
        return self._pass(line, case, timed, activity, work)

    def _pass(self, line: str, case: str, timed: Timing, activity: Activity | None, work: Work) -> PassLine:
        return PassLine(
            line=line,
            case=case,
            runs=timed.runs,
            ms=timed.ms,
            tokens_computed=float(work.tokens),
            peak_mb=timed.peak_mb,
            **self._rates(timed.ms, work, 1, 1),
            **_device(activity, timed.ms),
        )

    def _answer(
        self, case: str, cache: Cache, *, probed: bool = False, once: bool = False, graphs: bool = True
    ) -> PassLine:
        """Measure an answer from the prompt to the last token."""
        prompt, slots = self._prompt(self.settings.prompt), self.settings.horizon
        recipe = self._recipe(slots, self.settings.tokens_per_pass, cache)
        options: dict[str, Any] = {} if graphs else {"on_step": lambda step: None}
        cost = Cost(0, 0, 0)

        def call() -> None:
            nonlocal cost
            if probed:
                self._probe(prompt)
            cost = self._generate(prompt, recipe, **options).cost

        meter = replace(self.meter, repeats=1) if once else self.meter
        timed = meter.median(call, warm=None if not once else lambda: self._warm_up([prompt], recipe))
        work = Work(cost.tokens_computed, cost.attention_pairs, cost.forward_passes * self.settings.block / 2)
        passes = cost.forward_passes + probed
        if probed:
            work = work.plus(self._probe_work())
        return self._whole("answers", case, timed, work, passes, passes, slots)

    def _batch(self, case: str, cache: Cache, rows: int, batch_size: int) -> PassLine:
        """Measure the decoding of `rows` prompts in a running batch of `batch_size`."""
        shortest, longest = self.settings.prompts
        prompts = [self._prompt(shortest + (longest - shortest) * row // max(1, rows - 1)) for row in range(rows)]
        lengths = lengths_for(rows, self.settings.predicted)
        recipe = self._recipe(Replay.of(prompts, lengths), MIXED_TOKENS_PER_PASS, cache)
        totals = StepTotals(rows)

        def call() -> None:
            nonlocal totals
            totals = StepTotals.of(self._decode(prompts, recipe, batch_size), rows)

        timed = replace(self.meter, repeats=1).median(call, warm=lambda: self._warm_up(prompts, recipe, batch_size))
        costs = [row.cost for row in totals.finished]
        row_passes = sum(cost.forward_passes for cost in costs)
        tokens, pairs = (sum(getattr(cost, n) for cost in costs) for n in ("tokens_computed", "attention_pairs"))
        work = Work(tokens, pairs, row_passes * self.settings.block / 2)
        useful = sum(row.useful for row in lengths)
        line = self._whole("mixed", case, timed, work, totals.forward_passes, row_passes, useful)
        shares = {"useful_share": totals.useful, "occupancy": totals.occupancy}
        return line.model_copy(update={"rows": rows, **shares})

    def _whole(
        self, line: str, case: str, timed: Timing, work: Work, passes: int, row_passes: int, tokens: int
    ) -> PassLine:
        seconds = timed.ms / 1000
        return PassLine(
            line=line,
            case=case,
            runs=timed.runs,
            ms=timed.ms / passes,
            seconds=seconds,
            forward_passes=passes,
            tokens=tokens,
            tokens_computed=float(work.tokens),
            peak_mb=timed.peak_mb,
            tokens_per_second=tokens / seconds,
            tokens_per_forward=tokens / row_passes,
            **self._rates(timed.ms, work, passes, row_passes),
        )

    def _rates(self, ms: int | float, work: Work, passes: int, row_passes: int) -> dict[str, Any]:
        """Return arithmetic and traffic per second, and their shares of the ceilings."""
        if ms <= 0:  # a difference within the noise
            return {}
        tflops = work.flops(self.model.network.config) / ms / 1e9
        gbs = work.traffic(self.model, passes, row_passes) / ms / 1e6
        return {
            "tflops": tflops,
            "gbs": gbs,
            "compute_share": tflops / self.ceilings.tflops,
            "memory_share": gbs / self.ceilings.gbs,
        }


def _device(activity: Activity | None, ms: int | float) -> dict[str, Any]:
    """Return launches and kernels per forward pass, and the share of its time in which the device was busy."""
    if activity is None or ms <= 0:
        return {}
    return {
        "launches": None if activity.launches is None else max(0.0, activity.launches),
        "kernels": max(0.0, activity.kernels),
        "busy": min(1.0, max(0.0, activity.busy_ms / ms)),
    }


LINES: dict[str, Callable[[Bench], Iterator[PassLine]]] = {
    "passes": Bench.passes,
    "blocks": Bench.blocks,
    "probe": Bench.probe,
    "answers": Bench.answers,
    "mixed": Bench.mixed,
    "widths": Bench.widths,
    "plain": Bench.plain,
}
