"""Training batches, built on the device from index tables, without padding. Each depends only on seed and step.

The rows of a batch have the same width, and the width of a row determines its canvas. A canvas size is therefore
drawn for each document first, and the document goes into the group of the nearest width. A step draws a width, then
documents from its group. The probabilities of the widths are such that all documents are used equally often.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.corpus import Documents
from training.objective import Batch, masked, next_token, ratios
from training.settings import Rows

COPIES = 4  # canvas sizes drawn for each document


class Batches:
    """A function from a step to its batch; the same step always has the same batch, also after a resumed run."""

    def __init__(self, documents: Documents, rows: Rows, mask: int, *, shifted: bool, seed: int) -> None:
        self.documents, self.settings, self.mask, self.shifted = documents, rows, mask, shifted
        self.device = documents.tokens.device
        self.seed = seed
        self.generator = torch.Generator(self.device)
        widths = self._widths(np.random.default_rng(seed))
        self.widths, counts = np.unique(widths, return_counts=True)
        self.chance = self.widths * counts / (self.widths * counts).sum()
        order = np.argsort(widths, kind="stable") % len(documents.start)
        drawers = np.split(order, np.cumsum(counts)[:-1])
        self.drawers = [torch.from_numpy(drawer).to(self.device) for drawer in drawers]

    def _widths(self, rng: np.random.Generator) -> np.ndarray:  # [COPIES * D]
        """Return a row width for every copy of every document, after drawing its canvas size.

        A padded canvas contains the complete answer, as in supervised fine-tuning. A packed row is cut at a position
        that does not depend on the answer, because otherwise the cut would reveal the answer's length.
        """
        s, padded = self.settings, self.documents.fill is not None
        prompt = np.tile(self.documents.prompt.cpu().numpy(), COPIES)
        whole = np.tile(self.documents.length.cpu().numpy(), COPIES)
        low = np.minimum(whole - prompt, s.canvas) if padded else np.full_like(prompt, s.smallest)
        canvas = np.where(rng.random(len(prompt)) < s.full, s.canvas, rng.integers(low, s.canvas + 1))
        width = (prompt + canvas + s.grain // 2) // s.grain * s.grain
        if padded:
            width = np.maximum(width, -(-whole // s.grain) * s.grain)
        return np.clip(width, s.grain, s.widest)

    def __call__(self, step: int, *, causal: bool = False) -> Batch:
        s, rng = self.settings, np.random.default_rng((self.seed, step))
        group = int(rng.choice(len(self.widths), p=self.chance))
        width, drawer = int(self.widths[group]), self.drawers[group]
        rows = max(1, s.tokens // width)
        self.generator.manual_seed(int(rng.integers(2**62)))
        draws = torch.randint(len(drawer), (rows,), generator=self.generator, device=self.device)
        return self.batch(drawer[draws], width, causal=causal)

    def batch(self, chosen: Tensor, width: int, *, causal: bool = False) -> Batch:
        """Return rows that begin with the chosen documents, masked at random with the current generator."""
        s, padded = self.settings, self.documents.fill is not None
        columns = torch.arange(width, device=self.device)
        tokens = self.documents.rows(chosen, width)
        content = columns < (self.documents.length[chosen][:, None] if padded else width)
        content = content.expand(len(chosen), -1)
        if causal:
            return next_token(tokens, content)
        owner, place = self.documents.places(chosen, width)
        first = owner == chosen[:, None]
        first = first & (columns < self.documents.length[chosen][:, None]) if not padded else first
        mode = self._rand(len(chosen), 1)
        fixed = (place < 0) & first
        every = (mode < s.answers_only) & (not padded)
        if not padded:
            fixed = torch.where(every, place < 0, fixed & (mode < s.visible))
        chance = ratios(len(chosen), s.blank, s.eps, self.generator)
        started = self._since_the_cut(chosen, owner, place, every, width)
        return masked(
            tokens, fixed, content, chance, self.mask, self.generator, shifted=self.shifted,
            started=started, ahead_of=self._rand(len(chosen), 1) < s.ahead, reach=s.reach,
        )  # fmt: skip

    def _since_the_cut(
        self, chosen: Tensor, owner: Tensor, place: Tensor, every: Tensor, width: int
    ) -> Tensor:  # [B, W]
        """Return the distance of each column from the cut after which a row may be masked; negative before it.

        If later prompts of a packed row are visible, they reveal the length of the answer anyway, and every answer
        has a cut at a random position. Otherwise a row has one cut that does not depend on the answer, because
        otherwise the cut would reveal the answer's length. Early cuts are more likely, because long answers are rare.
        """
        columns = torch.arange(width, device=self.device)
        prompt = self.documents.prompt[chosen][:, None]
        cut = (self._rand(len(chosen), 1).square() * (width - prompt)).long()
        answer = (self.documents.length - self.documents.prompt)[owner]
        change = F.pad(owner[:, 1:] != owner[:, :-1], (1, 0)).cumsum(1)  # index of the document in its row
        draws = self._rand(len(chosen), width).gather(1, change)  # one per document of a row
        return torch.where(every, place - (draws * answer).long(), columns - prompt - cut)

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)
