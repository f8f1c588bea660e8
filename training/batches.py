"""Batches made on the device from index tables: no padding, no host work, random by step number.

The width of a row decides what its canvas is, and rows of one batch share it. So every document
draws a canvas size first, is filed under the nearest width, and a step picks a width and then rows
from its drawer. A width is picked as often as its drawer needs for every document to be seen alike.
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
    """`batches(step)`: the same batch for the same step, however training came to it."""

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
        """A row width for every copy of every document, by the canvas it draws.

        A padded canvas holds its answer whole, as in supervised fine-tuning; a packed one is cut
        anywhere, without regard to the answer, or the cut would tell how long the answer is.
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
        place = int(rng.choice(len(self.widths), p=self.chance))
        width, drawer = int(self.widths[place]), self.drawers[place]
        rows = max(1, s.tokens // width)
        self.generator.manual_seed(int(rng.integers(2**62)))
        at = torch.randint(len(drawer), (rows,), generator=self.generator, device=self.device)
        return self.batch(drawer[at], width, causal=causal)

    def batch(self, chosen: Tensor, width: int, *, causal: bool = False) -> Batch:
        """Rows of the chosen documents, masked by the generator's next numbers."""
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
        """Columns since the point from which a row would be masked; negative before it.

        Where later prompts stand in sight, they give the answer's length away, and every answer
        has a cut anywhere in it. Elsewhere a row has one cut, drawn without regard to the answer,
        or the cut would tell how long it is; early ones are likelier, as fewer answers get far.
        """
        columns = torch.arange(width, device=self.device)
        prompt = self.documents.prompt[chosen][:, None]
        one = (self._rand(len(chosen), 1).square() * (width - prompt)).long()
        answer = (self.documents.length - self.documents.prompt)[owner]
        change = F.pad(owner[:, 1:] != owner[:, :-1], (1, 0)).cumsum(1)  # number within the row
        draws = self._rand(len(chosen), width).gather(1, change)  # one for each document of a row
        return torch.where(every, place - (draws * answer).long(), columns - prompt - one)

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)
