"""Accuracy with the probe's keys: the first block opened by a separate pass, and by the probe.

    python -m benchmarks.opening run --per-family 50         all embedded models (a CPU)
    python -m benchmarks.opening run --models tiny-llada-base --per-family 2 --out out/opening.json
    python -m benchmarks.opening table                       prints the table from the record

Both ways keep the prompt (`DualCache(prompt_every=0)`). The first computes prompt and answer once more where
the first block opens. The second keeps what the probe computed, of the prompt and of as many slots as were
planned, and computes the block alone. The probe saw all slots that there may be, so that its keys are those
of another canvas. Here they are made by a second pass over that canvas, which no user of them would need.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

import lastword
from benchmarks.paired import Compared, Comparison
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

RECORD = Path(__file__).parent / "records" / "opening.json"


@dataclass(frozen=True)
class ProbeOpens(DualCache):
    """DualCache whose memory begins with what a probe of `limit` slots computed.

    All rows begin together: it serves this comparison, and no scheduler.
    """

    model: MaskPredictor = field(kw_only=True, compare=False)
    limit: int = field(kw_only=True)

    def create_storage(self, canvas: Canvas) -> KVStorage:
        prompts = [row[own].tolist() for row, own in zip(canvas.tokens, canvas.valid & ~canvas.answer)]
        slots = torch.full((len(prompts),), self.limit)
        probed = Canvas.blank(prompts, slots, canvas.ids, canvas.start)
        memory = KVStorage(*probed.tokens.shape)
        forward = Forward(self.model, Sampling(), RowGenerators([0] * len(prompts)))
        nothing = BatchCost.zeros(len(prompts))
        inputs = PassInputs(Columns.from_mask(probed.answer), stale=probed.valid)
        forward(probed, inputs, nothing, storage=memory)
        memory.fit(canvas.width)
        return memory

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        block = canvas.valid & self.stale_in_block(canvas, clock)
        return torch.where((clock.step == 0)[:, None], block, super().stale(canvas, clock))


def compared(name: str, recipe: Recipe, per_family: int, rows: int) -> Compared:
    """The model's answers both ways."""
    model = lastword.load(name, device="cpu")
    own = DualCache(prompt_every=0)
    probed = ProbeOpens(prompt_every=0, model=model, limit=model.default_max_new_tokens)
    before, after = (
        _answers(model, replace(recipe, cache=cache, block=32), per_family, rows) for cache in (own, probed)
    )
    return Compared.of(name, before, after)


def _answers(model: MaskPredictor, recipe: Recipe, per_family: int, rows: int) -> list[tuple[bool, str]]:
    """Right or not, and the text, of some prompts of every family."""
    layout, results = PromptLayout.of(model), []
    for family in BENCHMARKS:
        task = EmbeddedTask(family, "validation")
        samples = task.samples(per_family)
        texts: list[str] = []
        for first in range(0, len(samples), rows):
            asked = [layout.ids(sample) for sample in samples[first : first + rows]]
            texts += [str(made.text) for made in lastword.generate(model, asked, recipe=recipe)]
        texts = [sample.cut(text) for sample, text in zip(samples, texts)]
        results += [(score == 1, text) for score, text in zip(task.score(samples, texts), texts)]
    return results


OPENING = Comparison(RECORD, "a pass of its own", "the probe's keys", compared)

if __name__ == "__main__":
    OPENING.main(__doc__ or "")
