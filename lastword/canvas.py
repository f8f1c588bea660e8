"""Canvas: a prompt and the slots of its answer. The only thing decoding changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.errors import SettingError
from lastword.tokens import TokenIds


@dataclass(frozen=True)
class Window:
    """A span of columns per row, [first, last); empty for a row with nothing left to do."""

    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]

    def columns(self, width: int) -> Bool[Tensor, "B L"]:
        column = torch.arange(width)
        return (column >= self.first[:, None]) & (column < self.last[:, None])


@dataclass(frozen=True, eq=False)
class Canvas:
    """Rows of tokens: padding | prompt | answer | padding.

    All answers begin at column `start`, so shorter prompts are padded on the left; row r's answer
    takes `horizon[r]` columns. Every change returns a new canvas: ids are tiny beside a forward
    pass. It lives on the CPU, where every decision is taken, so that ties fall the same way
    whatever device the model runs on.
    """

    tokens: Int[Tensor, "B L"]
    start: int
    prompt_length: Int[Tensor, "B"]
    horizon: Int[Tensor, "B"]
    ids: TokenIds
    given_up: Bool[Tensor, "B"]  # rows whose remaining masks the model refuses to fill

    @classmethod
    def blank(
        cls, prompts: Sequence[Sequence[int]], horizon: Int[Tensor, "B"], ids: TokenIds
    ) -> Canvas:
        """Each prompt followed by its own number of masks."""
        if bool((horizon < 1).any()):
            raise SettingError(
                f"a horizon of {int(horizon.min())} was planned; an answer needs at least 1 slot"
            )
        start = max(len(prompt) for prompt in prompts)
        tokens = torch.full((len(prompts), start + int(horizon.max())), ids.pad)
        for row, prompt in enumerate(prompts):
            tokens[row, start - len(prompt) : start] = torch.tensor(prompt)
            tokens[row, start : start + int(horizon[row])] = ids.mask
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return cls(tokens, start, lengths, horizon, ids, torch.zeros_like(lengths).bool())

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def answer(self) -> Bool[Tensor, "B L"]:
        """The columns of each row's answer."""
        first = torch.full_like(self.horizon, self.start)
        return Window(first, first + self.horizon).columns(self.width)

    @cached_property
    def valid(self) -> Bool[Tensor, "B L"]:
        """Prompt and answer; what is not valid is padding no token may see."""
        first = self.start - self.prompt_length
        return Window(first, self.start + self.horizon).columns(self.width)

    @cached_property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Answer columns still to be filled."""
        return (self.tokens == self.ids.mask) & self.answer & ~self.given_up[:, None]

    @property
    def unfinished(self) -> Bool[Tensor, "B L"]:
        """The whole answer of every row that still has masks."""
        return self.answer & self.masked.any(-1, keepdim=True)

    @cached_property
    def ended(self) -> Bool[Tensor, "B L"]:
        """Answer columns that hold an end token."""
        ends = torch.tensor(self.ids.ends)
        return torch.isin(self.tokens, ends) & self.answer

    def window(self, block: int | None) -> Window:
        """Per row, the first block that still has masks; the last block may be short."""
        busy = self.masked.any(-1)
        end = self.start + self.horizon
        if block is None:
            first = torch.full_like(end, self.start)
            return Window(first, torch.where(busy, end, first))
        column = self.masked.to(torch.int8).argmax(-1)  # first masked column; 0 where none
        first = torch.where(busy, column - (column - self.start) % block, self.start)
        return Window(first, torch.where(busy, torch.minimum(first + block, end), first))

    def write(self, where: Bool[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Canvas:
        """Fill masks. Whatever `where` says, the prompt and what is already written stay."""
        return replace(self, tokens=torch.where(where & self.masked, tokens, self.tokens))

    def give_up(self, open: Bool[Tensor, "B L"], chosen: Bool[Tensor, "B L"]) -> Canvas:
        """Stop work on rows where all open masks were chosen and all stayed masks.

        Only a model that may propose the mask token gets there (Sampling.propose_mask); more
        passes over an unchanged canvas would change nothing.
        """
        refused = (~open | (chosen & self.masked)).all(-1) & open.any(-1)
        return replace(self, given_up=self.given_up | refused)

    def overwrite(self, tokens: Int[Tensor, "B L"]) -> Canvas:
        """Replace the whole answer, written tokens included: the way of a caller's own hook."""
        return replace(self, tokens=torch.where(self.answer, tokens, self.tokens))

    def answer_of(self, row: int) -> list[int]:
        """The row's answer as it stands, masks included."""
        return self.tokens[row, self.start : self.start + int(self.horizon[row])].tolist()
