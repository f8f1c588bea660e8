"""Canvas: a prompt and the slots of its answer. The only thing decoding changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TypeGuard

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lastword.canvas.columns import Window, cached_arange, first_true
from lastword.canvas.tokens import PromptIds, TokenIds, as_token_ids, is_array
from lastword.canvas.tree import tree_to, tree_where
from lastword.errors import PromptError, SettingError
from lastword.validation import is_list, short_repr


@dataclass(frozen=True, eq=False)
class Canvas:
    """Rows of tokens: padding | prompt | answer | padding.

    All answers begin at column `start`, so shorter prompts are padded on the left; row r's answer
    takes `horizon[r]` columns. Every change returns a new canvas: ids are tiny beside a forward
    pass. Decisions are taken where it lives: decoding puts it on the model's device, a probe reads on
    the CPU.
    """

    tokens: Int[Tensor, "B L"]
    start: int
    prompt_length: Int[Tensor, "B"]
    horizon: Int[Tensor, "B"]
    ids: TokenIds
    abandoned: Bool[Tensor, "B L"]  # masks the model refuses to fill
    suffix: Int[Tensor, "B"]  # columns at the answer's end that were given and are not the model's
    # Is it as wide as its answers may ever get, so that shapes stay and nobody asks the device anything?
    static: bool = False

    @classmethod
    def blank(
        cls,
        prompts: Sequence[PromptIds],
        horizon: Int[Tensor, "B"],
        ids: TokenIds,
        start: int | None = None,
    ) -> Canvas:
        """Each prompt followed by its own number of masks, from `start` on or behind the longest prompt."""
        if bool((horizon < 1).any()):
            raise SettingError(
                f"a horizon of {int(horizon.min())} was planned; an answer needs at least 1 slot"
            )
        rows = validate_prompts(prompts, ids)
        start = max(len(row) for row in rows) if start is None else start
        prompt_length = torch.tensor([len(row) for row in rows])
        prompt = pad_sequence(rows, True, ids.pad, "left")
        prompt = torch.nn.functional.pad(prompt, (start - prompt.shape[1], 0), value=ids.pad)
        answer = cached_arange(int(horizon.max()), horizon.device) < horizon[:, None]
        tokens = torch.cat((prompt, torch.where(answer, ids.mask, ids.pad)), 1)
        abandoned = torch.zeros_like(tokens, dtype=torch.bool)
        return cls(tokens, start, prompt_length, horizon, ids, abandoned, torch.zeros_like(horizon))

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def row(self, index: int) -> Canvas:
        """One row alone."""
        own = slice(index, index + 1)
        return replace(
            self,
            tokens=self.tokens[own],
            prompt_length=self.prompt_length[own],
            horizon=self.horizon[own],
            abandoned=self.abandoned[own],
            suffix=self.suffix[own],
        )

    def to(self, device: torch.device) -> Canvas:
        """The same on another device."""
        return tree_to(self, device)

    def may_contain(self, change: Tensor) -> bool:
        """Is anything to change? Where asking would stop the device: perhaps."""
        return self.static or bool(change.any())

    def with_static(self, static: bool) -> Canvas:
        """The same, static or not."""
        same = replace(self, static=static)
        same.__dict__.update({**self.__dict__, "static": static})
        return same

    def where(self, taken: Bool[Tensor, "B"], old: Canvas) -> Canvas:
        """These rows where they are taken, else the old ones."""
        rows = tree_where(taken, self, old)
        return rows._laid_out_as(old) if self.horizon is old.horizon else rows

    def widened(self, width: int) -> Canvas:
        """The same with padding on the right up to `width` columns."""
        by = (0, width - self.width)
        tokens = torch.nn.functional.pad(self.tokens, by, value=self.ids.pad)
        return replace(self, tokens=tokens, abandoned=torch.nn.functional.pad(self.abandoned, by))

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
        return (self.tokens == self.ids.mask) & self.answer & ~self.abandoned

    @property
    def unfinished(self) -> Bool[Tensor, "B L"]:
        """The whole answer of every row that still has masks."""
        return self.answer & self.masked.any(-1, keepdim=True)

    @cached_property
    def ended(self) -> Bool[Tensor, "B L"]:
        """Answer columns that hold an end token of the model's."""
        # `isin` takes ten times as long, in every pass.
        first, *others = (self.tokens == end for end in self.ids.ends)
        return reduce(torch.logical_or, others, first) & self.fillable

    @cached_property
    def fillable(self) -> Bool[Tensor, "B L"]:
        """The answer without its suffix: what the model writes."""
        first = torch.full_like(self.horizon, self.start)
        return Window(first, first + self.horizon - self.suffix).columns(self.width)

    def window(self, block: int | None) -> Window:
        """Per row, the first block that still has masks; the last block may be short."""
        busy = self.masked.any(-1)
        end = self.start + self.horizon
        if block is None:
            first = torch.full_like(end, self.start)
            return Window(first, torch.where(busy, end, first))
        column = first_true(self.masked)
        first = torch.where(busy, column - (column - self.start) % block, self.start)
        return Window(first, torch.where(busy, torch.minimum(first + block, end), first))

    def changed_since(self, before: Canvas) -> Bool[Tensor, "B"]:
        """Rows that changed their length, or hold another token where one was written."""
        shared = min(self.width, before.width)
        written = (before.answer & (before.tokens != before.ids.mask))[:, :shared]
        other = self.tokens[:, :shared] != before.tokens[:, :shared]
        return (self.horizon != before.horizon) | (written & other).any(-1)

    def write(self, where: Bool[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Canvas:
        """Fill masks. Whatever `where` says, the prompt and what is already written stay."""
        tokens = torch.where(where & self.masked, tokens, self.tokens)
        return replace(self, tokens=tokens)._laid_out_as(self)

    def abandon(self, open: Bool[Tensor, "B L"], chosen: Bool[Tensor, "B L"]) -> Canvas:
        """Leave a row's open masks alone if all of them were chosen and all stayed masks.

        Only a model that may propose the mask token gets there (Sampling.propose_mask). At
        temperature 0 another pass would propose the same; above, the authors give up as well.
        """
        refused = (~open | (chosen & self.masked)).all(-1, keepdim=True)
        if not self.may_contain(refused):
            return self
        return replace(self, abandoned=self.abandoned | (open & refused))._laid_out_as(self)

    def replace_answer(self, tokens: Int[Tensor, "B L"]) -> Canvas:
        """Replace the whole answer, written tokens included: the way of a caller's own hook."""
        tokens = torch.where(self.answer, tokens, self.tokens)
        return replace(self, tokens=tokens)._laid_out_as(self)

    def _laid_out_as(self, other: Canvas) -> Canvas:
        """Take over where prompt and answer lie, which takes longer to work out than the rules."""
        for name in ("answer", "valid", "fillable"):
            if name in other.__dict__:
                self.__dict__[name] = other.__dict__[name]
        return self

    def crop(self, horizon: Int[Tensor, "B"]) -> Canvas:
        """Shorten answers to `horizon` slots where that is fewer; what is cut becomes padding."""
        horizon = torch.minimum(horizon, self.horizon)
        if not self.may_contain(horizon != self.horizon):
            return self  # nearly every pass; what was worked out of the canvas stays known
        suffix = (self.suffix - (self.horizon - horizon)).clamp(min=0)
        shorter = replace(self, horizon=horizon, suffix=suffix)
        cut = self.answer & ~shorter.answer
        return replace(shorter, tokens=self.tokens.masked_fill(cut, self.ids.pad))

    @cached_property
    def min_horizon(self) -> Int[Tensor, "B"]:
        """The fewest slots a row may be cropped to without losing text; at least 1.

        Text are the written words that no end token precedes, and the end token that closes them
        once no mask is left before it. An end token behind masks may be cut: it says that the
        answer ends somewhere before it, not that this slot is needed.
        """
        column = cached_arange(self.width, self.tokens.device)
        first_end = torch.where(self.ended, column, self.width).amin(-1, keepdim=True)
        before_end = self.fillable & (column < first_end)
        empty = self.tokens == self.ids.mask
        closed = ~(before_end & empty).any(-1, keepdim=True)
        kept = (before_end & ~empty) | (self.ended & (column == first_end) & closed)
        last = torch.where(kept, column, self.start).amax(-1)
        return last + 1 - self.start

    def extend(self, count: Int[Tensor, "B"]) -> Canvas:
        """Lengthen answers by `count` masks, before their suffix."""
        return self.insert_masks(self.start + self.horizon - self.suffix, count)

    def append_suffix(self, token: int, count: Int[Tensor, "B"]) -> Canvas:
        """The same with `count` times this token behind each answer, as its suffix."""
        longer = self.insert_masks(self.start + self.horizon, count)
        column = cached_arange(longer.width, count.device)
        new = column >= (self.start + self.horizon)[:, None]
        written = longer.write(new, torch.full_like(longer.tokens, token))
        return replace(written, suffix=self.suffix + count)

    def insert_masks(self, column: Int[Tensor, "B"], count: Int[Tensor, "B"]) -> Canvas:
        """Put `count` masks before the answer's `column`; it and what follows move right."""
        if not self.may_contain(count):
            return self
        horizon = self.horizon + count
        width = self.width
        if not self.static:
            width = max(width, self.start + int(horizon.max()))
        at = cached_arange(width, horizon.device).expand(len(horizon), -1)
        column, count = column[:, None], count[:, None]
        source = torch.where(at < column, at, at - count).clamp(0, self.width - 1)
        tokens, abandoned = self.tokens.gather(1, source), self.abandoned.gather(1, source)
        new = (at >= column) & (at < column + count)
        beyond = at >= (self.start + horizon)[:, None]
        tokens = tokens.masked_fill(new, self.ids.mask).masked_fill(beyond, self.ids.pad)
        return replace(self, tokens=tokens, horizon=horizon, abandoned=abandoned & ~new & ~beyond)

    def answer_ids(self, row: int) -> list[int]:
        """The row's answer as it stands, masks included."""
        return self.tokens[row, self.start : self.start + int(self.horizon[row])].tolist()


def validate_prompts(prompts: Sequence[PromptIds], ids: TokenIds) -> list[Tensor]:
    """The prompts as tensors of ids, or an error that says what is wrong with which of them."""
    if not is_list(prompts) and not (is_array(prompts) and getattr(prompts, "ndim", 0) > 0):
        raise PromptError(f"{short_repr(prompts)} was given for prompts; give a list of lists of token ids")
    if not len(prompts):
        raise PromptError("no prompt was given; give at least one")
    ready = [one for one in prompts if _is_ready(one) and len(one) and one.is_cpu]
    if len(ready) == len(prompts):
        every = torch.cat(ready)  # one question for all of them
        if bool(((every >= 0) & (every < ids.vocab_size) & (every != ids.mask)).all()):
            return ready
    return [_checked(prompt, number, ids) for number, prompt in enumerate(prompts)]


def _is_ready(prompt: object) -> TypeGuard[Tensor]:
    return isinstance(prompt, Tensor) and (prompt.dtype, prompt.ndim) == (torch.long, 1)


def _checked(prompt: PromptIds, number: int, ids: TokenIds) -> Int[Tensor, "P"]:
    try:
        whole = prompt if _is_ready(prompt) else as_token_ids(prompt)
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise PromptError(
            f"prompt {number} is no list of token ids ({wrong}); give text, chat messages or whole-number ids"
        ) from wrong
    if not len(whole):
        raise PromptError(f"prompt {number} is empty; give it at least one token")
    for token in (whole.min(), whole.max()) if isinstance(whole, Tensor) else (min(whole), max(whole)):
        if not 0 <= token < ids.vocab_size:
            raise PromptError(
                f"prompt {number} holds id {short_repr(int(token))}, outside the vocabulary of "
                f"{ids.vocab_size} ids; give ids below that, of this model's own tokenizer"
            )
    row = whole if isinstance(whole, Tensor) else torch.tensor(whole, dtype=torch.long)
    if bool((row == ids.mask).any()):
        raise PromptError(
            f"prompt {number} holds the mask token (id {ids.mask}), which decoding would fill in; "
            "remove it from the prompt"
        )
    return row
