"""Accuracy with the probe's keys and values: the first block started by a separate pass, or from the probe.

    python -m benchmarks.probe_cache run --per-family 50     measure all embedded models (a CPU)
    python -m benchmarks.probe_cache run --models tiny-llada-base --per-family 2 --out out/probe-cache.json
    python -m benchmarks.probe_cache table                   print the table of the record

In both ways the keys and values of the prompt are computed once (`DualCache(prompt_every=0)`). The first way
computes prompt and answer again at the start of the first block. The second keeps what the probe computed for
the prompt and the planned slots, and computes the block only. The probe sees all slots up to the limit, so its
keys belong to another canvas. This benchmark recomputes them with a second pass over that canvas, which an
implementation would not need.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

import lastword
from benchmarks.paired import Comparison, PairedResult, ScoredText
from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.evaluate.run import PromptLayout
from lastword.evaluate.tasks import EmbeddedTask
from lastword.models.base import MaskPredictor
from lastword.models.storage import KVStorage
from lastword.policies.cache import DualCache
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

RECORD = Path(__file__).parent / "records" / "probe-cache.json"


@dataclass(frozen=True)
class ProbeCache(DualCache):
    """A `DualCache` whose storage starts with the keys and values of a probe of `limit` slots.

    All rows must start together, so it serves this comparison only and not a scheduler.
    """

    model: MaskPredictor = field(kw_only=True, compare=False)
    limit: int = field(kw_only=True)

    traits = replace(DualCache.traits, starts_filled=True)

    def create_storage(self, canvas: Canvas) -> KVStorage:
        prompts = [tokens[mask].tolist() for tokens, mask in zip(canvas.tokens, canvas.valid & ~canvas.answer)]
        slots = torch.full((len(prompts),), self.limit)
        probed = Canvas.blank(prompts, slots, canvas.ids, canvas.start)
        storage = KVStorage(*probed.tokens.shape)
        forward = Forward(self.model, Sampling(), RowGenerators([0] * len(prompts)))
        inputs = PassInputs(Columns.from_mask(probed.answer), stale=probed.valid)
        forward(probed, inputs, BatchCost.zeros(len(prompts)), storage=storage)
        storage.fit(canvas.width)
        return storage

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        block = canvas.valid & self.stale_in_block(canvas, clock)
        return torch.where((clock.step == 0)[:, None], block, super().stale(canvas, clock))


def compare(name: str, recipe: Recipe, per_family: int, batch_size: int) -> PairedResult:
    """Compare the answers of a model in both ways."""
    model = lastword.load(name, device="cpu")
    separate = DualCache(prompt_every=0)
    probed = ProbeCache(prompt_every=0, model=model, limit=model.default_max_new_tokens)
    before, after = (
        _answers(model, replace(recipe, cache=cache, block=32), per_family, batch_size) for cache in (separate, probed)
    )
    return PairedResult.of(name, before, after)


def _answers(model: MaskPredictor, recipe: Recipe, per_family: int, batch_size: int) -> list[ScoredText]:
    """Return correctness and text of the answers to some prompts of every family."""
    layout, results = PromptLayout.of(model), list[ScoredText]()
    for family in BENCHMARKS:
        task = EmbeddedTask(family, "validation")
        samples = task.samples(per_family)
        texts: list[str] = []
        for first in range(0, len(samples), batch_size):
            prompts = [layout.ids(sample) for sample in samples[first : first + batch_size]]
            texts += [str(answer.text) for answer in lastword.generate(model, prompts, recipe=recipe)]
        texts = [sample.cut(text) for sample, text in zip(samples, texts)]
        results += [(score == 1, text) for score, text in zip(task.score(samples, texts), texts)]
    return results


PROBE_CACHE = Comparison(RECORD, "separate pass", "keys of the probe", compare)

if __name__ == "__main__":
    PROBE_CACHE.main(__doc__ or "")
