"""The canvas of a batch (prompts, then answer slots), the clock of its rows, and functions on trees of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lastword.canvas.columns import Window, cached_arange, first_true
from lastword.canvas.tokens import PromptIds, TokenIds, check_tensor
from lastword.errors import SettingError
from lastword.validation import MAX_SLOTS, short_repr


@dataclass(frozen=True, eq=False)
class RowSpans:
    """The columns of the prompt and the answer of each row.

    Canvases that differ only in their tokens share one instance, so its boolean tensors are computed once.
    """

    start: int  # the column where all answers begin
    width: int  # number of columns
    prompt_length: Int[Tensor, "B"]
    horizon: Int[Tensor, "B"]
    suffix: Int[Tensor, "B"]  # number of given tokens at the end of the answer

    @cached_property
    def answer(self) -> Bool[Tensor, "B L"]:
        return self._from_start(self.start + self.horizon)

    @cached_property
    def fillable(self) -> Bool[Tensor, "B L"]:
        return self._from_start(self.start + self.horizon - self.suffix)

    @cached_property
    def valid(self) -> Bool[Tensor, "B L"]:
        return Window(self.start - self.prompt_length, self.start + self.horizon).columns(self.width)

    def _from_start(self, end: Int[Tensor, "B"]) -> Bool[Tensor, "B L"]:
        return Window(torch.full_like(self.horizon, self.start), end).columns(self.width)


@dataclass(frozen=True, eq=False)
class Canvas:
    """A batch of rows: padding | prompt | answer | padding.

    All answers begin at column `start`, so shorter prompts are padded on the left; the answer of row r has `horizon[r]`
    slots. A canvas is immutable: every change returns a new one, which costs little compared with a forward pass. It
    lives on the model's device during decoding and on the CPU during planning.
    """

    tokens: Int[Tensor, "B L"]
    spans: RowSpans
    ids: TokenIds
    abandoned: Bool[Tensor, "B L"]  # masks that stay unfilled: see `abandon`; also those of rows ended early
    # A static canvas is as wide as its longest possible answer, and its methods never wait for the device.
    static: bool = False

    @classmethod
    def blank(
        cls, prompts: Sequence[PromptIds], horizon: Int[Tensor, "B"], ids: TokenIds, start: int | None = None
    ) -> Canvas:
        """Return prompts followed by `horizon` masks; answers begin at `start` (None: after the longest prompt)."""
        check_tensor("the horizon of a canvas is", horizon, torch.Size((len(prompts),)), torch.long)
        if not 1 <= int(horizon.min()) <= int(horizon.max()) <= MAX_SLOTS:
            given = int(horizon.min() if int(horizon.min()) < 1 else horizon.max())
            raise SettingError(f"a horizon of {given} slots was given; an answer has 1 to {MAX_SLOTS} slots")
        prompt_length = torch.tensor([len(prompt) for prompt in prompts])
        start = int(prompt_length.max()) if start is None else start
        prompt = pad_sequence([torch.as_tensor(prompt) for prompt in prompts], True, ids.pad, "left")
        prompt = torch.nn.functional.pad(prompt, (start - prompt.shape[1], 0), value=ids.pad)
        answer = cached_arange(int(horizon.max()), horizon.device) < horizon[:, None]
        tokens = torch.cat((prompt, torch.where(answer, ids.mask, ids.pad)), 1)
        spans = RowSpans(start, tokens.shape[1], prompt_length, horizon, torch.zeros_like(horizon))
        return cls(tokens, spans, ids, torch.zeros_like(tokens, dtype=torch.bool))

    @property
    def start(self) -> int:
        return self.spans.start

    @property
    def width(self) -> int:
        return self.spans.width

    @property
    def prompt_length(self) -> Int[Tensor, "B"]:
        return self.spans.prompt_length

    @property
    def horizon(self) -> Int[Tensor, "B"]:
        return self.spans.horizon

    @property
    def suffix(self) -> Int[Tensor, "B"]:
        return self.spans.suffix

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def row(self, index: int) -> Canvas:
        """Return a canvas of one row."""
        return tree_map(lambda rows: rows[index : index + 1], self)

    def may_contain(self, change: Tensor) -> bool:
        """Return whether `change` has a non-zero entry; True on a static canvas, where it is not examined."""
        return self.static or bool(change.any())

    def where(self, condition: Bool[Tensor, "B"], other: Canvas) -> Canvas:
        """Return a canvas with the rows of this one where `condition` holds and those of `other` elsewhere."""
        merged = tree_where(condition, self, other)
        return replace(merged, spans=other.spans) if self.spans is other.spans else merged

    def widened(self, width: int) -> Canvas:
        """Return the canvas padded on the right to `width` columns."""
        pad = (0, width - self.width)
        return replace(
            self,
            tokens=torch.nn.functional.pad(self.tokens, pad, value=self.ids.pad),
            abandoned=torch.nn.functional.pad(self.abandoned, pad),
            spans=replace(self.spans, width=width),
        )

    @property
    def answer(self) -> Bool[Tensor, "B L"]:
        """The columns of each row's answer."""
        return self.spans.answer

    @property
    def valid(self) -> Bool[Tensor, "B L"]:
        """The columns of prompt and answer. All others are padding, which no token attends to."""
        return self.spans.valid

    @property
    def fillable(self) -> Bool[Tensor, "B L"]:
        """The columns of the answer that the model writes: the answer without its suffix."""
        return self.spans.fillable

    @cached_property
    def masked(self) -> Bool[Tensor, "B L"]:
        """The columns of the answer that are still to be filled."""
        return (self.tokens == self.ids.mask) & self.answer & ~self.abandoned

    @property
    def unfinished(self) -> Bool[Tensor, "B L"]:
        """The whole answer of every row that still has masks."""
        return self.answer & self.masked.any(-1, keepdim=True)

    @cached_property
    def ended(self) -> Bool[Tensor, "B L"]:
        """The columns that the model filled with an end token."""
        # This runs in every pass, and `torch.isin` takes ten times as long.
        first, *others = (self.tokens == end for end in self.ids.ends)
        return reduce(torch.logical_or, others, first) & self.fillable

    def window(self, block: int | None) -> Window:
        """Return each row's first block with masks, or whole answer if `block` is None; empty for a finished row."""
        has_masks = self.masked.any(-1)
        end = self.start + self.horizon
        if block is None:
            first = torch.full_like(end, self.start)
            return Window(first, torch.where(has_masks, end, first))
        column = first_true(self.masked)
        first = torch.where(has_masks, column - (column - self.start) % block, self.start)
        return Window(first, torch.where(has_masks, torch.minimum(first + block, end), first))

    def changed_since(self, before: Canvas) -> Bool[Tensor, "B"]:
        """Return the rows whose horizon differs from `before`, or where a token written in it has changed."""
        shared = min(self.width, before.width)
        written = (before.answer & (before.tokens != before.ids.mask))[:, :shared]
        differs = self.tokens[:, :shared] != before.tokens[:, :shared]
        return (self.horizon != before.horizon) | (written & differs).any(-1)

    def write(self, where: Bool[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Canvas:
        """Return the canvas with `tokens` written into its masks at `where`; all other columns keep their tokens."""
        return replace(self, tokens=torch.where(where & self.masked, tokens, self.tokens))

    def abandon(self, open_masks: Bool[Tensor, "B L"], chosen: Bool[Tensor, "B L"]) -> Canvas:
        """Return the canvas with the open masks of a row abandoned if the mask token was chosen for all of them.

        This happens only with `Sampling.propose_mask`. At temperature 0 another pass would propose the mask token
        again; above 0 the reference code stops in this case as well.
        """
        refused = (~open_masks | (chosen & self.masked)).all(-1, keepdim=True)
        if not self.may_contain(refused):
            return self
        return replace(self, abandoned=self.abandoned | (open_masks & refused))

    def replace_answer(self, tokens: Int[Tensor, "B L"]) -> Canvas:
        """Return the canvas with all answer tokens replaced, filled slots included; used by token hooks."""
        return replace(self, tokens=torch.where(self.answer, tokens, self.tokens))

    def crop(self, horizon: Int[Tensor, "B"]) -> Canvas:
        """Return the canvas with answers cut to at most `horizon` slots; columns cut off become padding."""
        check_tensor("the horizon of Canvas.crop is", horizon, self.horizon.shape, torch.long, self.horizon.device)
        horizon = torch.minimum(horizon, self.horizon)
        if not self.may_contain(horizon != self.horizon):
            return self  # the usual case; the same object keeps its cached properties
        suffix = (self.suffix - (self.horizon - horizon)).clamp(min=0)
        spans = replace(self.spans, horizon=horizon, suffix=suffix)
        removed = self.answer & ~spans.answer
        return replace(self, tokens=self.tokens.masked_fill(removed, self.ids.pad), spans=spans)

    @cached_property
    def min_horizon(self) -> Int[Tensor, "B"]:
        """The smallest horizon to which each row can be cropped without losing text; at least 1.

        Text is every written token before the first end token, and that end token once no mask precedes it. An end
        token after masks may be cropped, because the answer may end before it.
        """
        column = cached_arange(self.width, self.tokens.device)
        first_end = torch.where(self.ended, column, self.width).amin(-1, keepdim=True)
        before_end = self.fillable & (column < first_end)
        empty = self.tokens == self.ids.mask
        closed = ~(before_end & empty).any(-1, keepdim=True)
        text = (before_end & ~empty) | (self.ended & (column == first_end) & closed)
        last = torch.where(text, column, self.start).amax(-1)
        return last + 1 - self.start

    def extend(self, count: Int[Tensor, "B"]) -> Canvas:
        """Return the canvas with `count` masks added to each answer, before its suffix."""
        return self.insert_masks(self.start + self.horizon - self.suffix, count)

    def append_suffix(self, token: int, count: Int[Tensor, "B"]) -> Canvas:
        """Return the canvas with `count` copies of a token after each answer, as its suffix."""
        longer = self.insert_masks(self.start + self.horizon, count)
        new = cached_arange(longer.width, count.device) >= (self.start + self.horizon)[:, None]
        written = longer.write(new, torch.full_like(longer.tokens, token))
        return replace(written, spans=replace(written.spans, suffix=self.suffix + count))

    def insert_masks(self, column: Int[Tensor, "B"], count: Int[Tensor, "B"]) -> Canvas:
        """Return the canvas with `count` masks inserted before `column`; tokens from there on move right."""
        check_tensor("the count of masks to insert is", count, self.horizon.shape, torch.long, self.horizon.device)
        if not self.may_contain(count):
            return self
        horizon = self.horizon + count
        width = self.width
        if not self.static:
            if int(horizon.max()) > MAX_SLOTS or int(count.min()) < 0:
                raise SettingError(
                    f"{short_repr(count.tolist())} masks were to be inserted; insert 0 or more per row, and at most "
                    f"{MAX_SLOTS} slots in all"
                )
            width = max(width, self.start + int(horizon.max()))
        at = cached_arange(width, horizon.device).expand(len(horizon), -1)
        column, count = column[:, None], count[:, None]
        source = torch.where(at < column, at, at - count).clamp(0, self.width - 1)
        new = (at >= column) & (at < column + count)
        beyond = at >= (self.start + horizon)[:, None]
        tokens = self.tokens.gather(1, source).masked_fill(new, self.ids.mask)
        return replace(
            self,
            tokens=tokens.masked_fill(beyond, self.ids.pad),
            spans=replace(self.spans, width=width, horizon=horizon),
            abandoned=self.abandoned.gather(1, source) & ~new & ~beyond,
        )

    def answer_ids(self, row: int) -> list[int]:
        """Return the token ids of a row's answer, masks included."""
        return self.tokens[row, self.start : self.start + int(self.horizon[row])].tolist()


@dataclass(frozen=True, eq=False)
class Clock:
    """Step counters per row. Rows count independently, so each row of a batch decodes as it would alone."""

    step: Int[Tensor, "B"]  # index of the row's next step, from 0
    window: Window  # the current block
    in_window: Int[Tensor, "B"]  # steps the row has spent in this block
    masks_at_start: Int[Tensor, "B"]  # masks in the block when it started
    block_start: Bool[Tensor, "B"]  # whether the next step is the first of the block
    blocks_started: Int[Tensor, "B"]  # blocks the row has started, this one included
    horizon: Int[Tensor, "B"]  # number of slots of the row's answer

    @classmethod
    def start(cls, canvas: Canvas) -> Clock:
        """Return a clock whose first `tick` returns the clock of step 0."""
        before = torch.full_like(canvas.horizon, -1)
        zero = torch.zeros_like(before)
        return cls(before, Window(before, before), zero, zero, zero.bool(), zero, canvas.horizon)

    def tick(self, canvas: Canvas, block: int | None, active: Bool[Tensor, "B"] | None = None) -> Clock:
        """Return the clock of the next step; only `active` rows advance (None: all).

        A resize of a row also counts as a block start, because its masks change and tokens move: schedules start again
        and caches recompute the row.
        """
        window = canvas.window(block)
        block_start = (window.first != self.window.first) | (window.last != self.window.last)
        block_start = block_start | (canvas.horizon != self.horizon)
        masks = (canvas.masked & window.columns(canvas.width)).sum(-1)
        advanced = 1 if active is None else active
        return Clock(
            self.step + advanced,
            window,
            torch.where(block_start, 0, self.in_window + advanced),
            torch.where(block_start, masks, self.masks_at_start),
            block_start if active is None else block_start | (self.block_start & ~active),
            self.blocks_started + block_start,
            canvas.horizon,
        )


# The state of a part from step to step: a NamedTuple of tensors whose first axis is the rows, or ().
State = tuple[Tensor, ...]

Tree = TypeVar("Tree")  # a tensor, a tuple of trees, or a dataclass that holds trees


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Return the tree with the function applied to every tensor and its counterparts in `others`."""
    first: Any = tree
    if isinstance(first, Tensor):
        return function(first, *others)  # type: ignore[return-value]
    if isinstance(first, tuple):
        parts = [tree_map(function, *leaves) for leaves in zip(first, *others)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)  # type: ignore
    if is_dataclass(first) and not isinstance(first, (type, TokenIds)):
        names = [field.name for field in fields(first) if field.init]
        changed = {name: tree_map(function, *(getattr(leaf, name) for leaf in (first, *others))) for name in names}
        return replace(first, **changed)  # type: ignore[return-value]
    return tree


def tree_tensors(tree: object) -> Iterator[Tensor]:
    """Return an iterator over the tensors of a tree, in the order of its fields."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    tree_map(collect, tree)
    return iter(tensors)


def tree_to(tree: Tree, device: torch.device) -> Tree:
    """Return the tree with every tensor on `device`."""
    return tree_map(lambda tensor: tensor.to(device), tree)


def tree_where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    """Return a tree with the rows of `new` where `condition` [B] holds and those of `old` elsewhere."""

    def pick(fresh: Tensor, kept: Tensor) -> Tensor:
        if fresh is kept:
            return kept
        return fresh.where(condition.view(-1, *[1] * (fresh.ndim - 1)), kept)

    return tree_map(pick, new, old)
