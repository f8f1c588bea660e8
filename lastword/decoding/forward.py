"""Forward passes: their input columns, the calls of the model, user hooks, and the cost per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns, pack_indices
from lastword.canvas.contracts import check_unchanged, version_of
from lastword.canvas.tokens import FLOAT_DTYPES, check_tensor
from lastword.decoding.prediction import Logits, Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import CapacityError, SettingError
from lastword.models.base import MaskPredictor, check_logits
from lastword.models.storage import CacheStorage, KVStorage, RowKVStorage
from lastword.validation import check_callable


class PackedCapacity(NamedTuple):
    """The tensor sizes of a pass over packed rows, which may fill less than these sizes."""

    tokens: int  # tokens of all rows together
    read: int  # columns to read in all rows together
    slots: int  # slots of the longest answer


class StaticColumns(NamedTuple):
    """The columns that a static pass with a cache recomputes in every row."""

    columns: Int[Tensor, "B R"]
    counts: Int[Tensor, "B"]  # how many of a row's columns are not padding


@dataclass(frozen=True, eq=False)
class PassInputs:
    """The columns that a forward pass reads, and the columns that it computes.

    By default a pass computes all valid columns. With a cache, a dynamic pass computes the `stale` columns and
    a static pass the `recompute` columns. Without a cache, a static pass computes the columns `row` of a single
    row, or the `active` rows packed side by side.
    """

    columns: Columns  # columns to read
    visible: Bool[Tensor, "B L"] | None = None  # columns that exist for a dynamic pass; None: all valid ones
    stale: Bool[Tensor, "B L"] | None = None
    recompute: StaticColumns | None = None
    row: range | None = None  # prompt and answer of a single row; None: several rows, or unknown on the host
    packed: PackedCapacity | None = None
    active: Bool[Tensor, "B"] | None = None


class Forward:
    """The only caller of the model, which runs a forward pass, draws candidate tokens and adds up the cost."""

    def __init__(
        self,
        model: MaskPredictor,
        sampling: Sampling,
        generators: RowGenerators,
        *,
        hook: LogitsHook | None = None,
        exceed_max_seq_len: bool = False,
    ) -> None:
        self.generators = generators  # one per row of the batch
        self._model, self._sampling, self._hook = model, sampling, hook
        self._exceed_max_seq_len = exceed_max_seq_len
        self._stored: Canvas | None = None  # the canvas of the last pass that wrote to the cache storage
        # Logits of padding, and of too many columns at once, need not be computed if the model returns hidden states.
        self._returns_states = hasattr(type(model), "states")  # a wrapper of a model may change its logits

    def __call__(
        self, canvas: Canvas, inputs: PassInputs, cost: BatchCost, *, storage: CacheStorage | None = None, step: int = 0
    ) -> tuple[Prediction, BatchCost]:
        """Return the predictions for `inputs.columns` and the cost after the pass.

        A row participates, and its cost grows, only if a column of it is read. A static pass computes all rows,
        because finding out on the host which rows participate would need a synchronisation.
        """
        columns, guidance = inputs.columns, self._sampling.guidance
        if not canvas.static and not self._exceed_max_seq_len:
            longest = int((canvas.prompt_length + canvas.horizon).argmax())
            prompt, horizon = int(canvas.prompt_length[longest]), int(canvas.horizon[longest])
            check_context_length(prompt, horizon, self._model.max_seq_len)
        attended = canvas.prompt_length + canvas.horizon if inputs.visible is None else inputs.visible.sum(-1)
        logits, computed = self._compute(canvas, inputs, storage)
        computed = attended if computed is None else computed
        cost = cost.add_pass(columns.participates, computed, attended)
        if guidance:
            # The unconditional branch has masks instead of the prompt, and the same answer.
            bare = replace(canvas, tokens=torch.where(canvas.answer, canvas.tokens, canvas.ids.mask))
            unconditional, _ = self._compute(bare, replace(inputs, stale=None), None)
            cost = cost.add_pass(columns.participates, attended, attended, passes=0)
            base, conditional = unconditional.whole, logits.whole
            guided = base + (1 + guidance) * (conditional - base)
            # Equal logits are kept, because the guided logit would be NaN where both branches have -inf.
            logits = Logits.of(torch.where(conditional == base, conditional, guided))
        if self._hook is not None:
            hooked, shape = self._hook(step, canvas, columns, logits.whole), logits.whole.shape
            owner = "the logits hook returned"
            logits = Logits.of(check_tensor(owner, hooked, shape, FLOAT_DTYPES, logits.device, "floating-point logits"))
        return Prediction.from_logits(logits, columns, canvas, self._sampling, self.generators), cost

    def _compute(
        self, canvas: Canvas, inputs: PassInputs, storage: CacheStorage | None
    ) -> tuple[Logits, Int[Tensor, "B"] | None]:
        """Return the logits and the number of tokens computed per row (None: all visible columns)."""
        if inputs.recompute is not None and isinstance(storage, KVStorage):
            return self._cached_static(canvas, inputs.columns, inputs.recompute, inputs.row, storage)
        if inputs.packed is not None and inputs.active is not None:
            return self._packed(canvas, inputs.columns, inputs.active, inputs.packed), None
        if inputs.row is not None:
            row = slice(inputs.row.start, inputs.row.stop)
            return self._logits(self._run(canvas.tokens[:, row], inputs.columns.index - row.start)), None
        visible = canvas.valid if inputs.visible is None else inputs.visible
        if inputs.stale is not None and storage is not None:
            return self._cached(canvas, inputs.columns, visible, inputs.stale, storage)
        return self._full(canvas, inputs.columns, visible), None

    def _run(self, tokens: Tensor, read: Tensor, **arguments: Any) -> Tensor:
        """Return the model's hidden states [A, S, W] if it has `states`, or its logits [A, S, V]."""
        if self._returns_states:
            return self._model.states(tokens, read, **arguments)  # type: ignore[attr-defined]
        return check_logits(self._model(tokens, read, **arguments), read.shape, self._model)

    def _read_logits(self, output: Tensor, read: Bool[Tensor, "A S"]) -> Logits:
        """Return the logits of a dynamic pass; those that are not read are not computed."""
        count = int(read.sum())
        if not self._returns_states or self._sampling.temperature or count in (0, read.numel()):
            return self._logits(output)
        rank, picked = pack_indices(read.flatten().to(output.device), count)
        return self._logits(output.flatten(0, 1)[picked][None], rank.view(read.shape))

    def _logits(self, output: Tensor, packed: Tensor | None = None) -> Logits:
        model: Any = self._model
        if packed is None and not self._returns_states:
            return Logits.of(output)

        def head(states: Tensor) -> Tensor:
            return check_logits(model.head(states), states.shape[:2], model)

        return Logits(output, head, model.ids.vocab_size, packed)

    def _full(self, canvas: Canvas, columns: Columns, visible: Bool[Tensor, "B L"]) -> Logits:
        """Return the logits of a pass over all visible columns of the participating rows."""
        rows, device = columns.rows, self._model.device
        visible = visible[rows]
        used = visible.any(0).nonzero()[:, 0]
        trim = slice(int(used[0]), int(used[-1]) + 1)
        visible = visible[:, trim]
        output = self._run(
            canvas.tokens[rows][:, trim].to(device),
            (columns.index[rows] - trim.start).to(device),
            valid=None if bool(visible.all()) else visible.to(device),
        )
        return self._read_logits(output, columns.read[rows])

    def _packed(self, canvas: Canvas, columns: Columns, active: Bool[Tensor, "B"], capacity: PackedCapacity) -> Logits:
        """Return the logits of a pass over the active rows, packed side by side without padding."""
        model: Any = self._model
        valid = canvas.valid & active[:, None]
        states = model.states(canvas.tokens, columns.index, valid=valid, capacity=capacity.tokens)
        rank, picked = pack_indices(columns.read.flatten(), capacity.read)
        return self._logits(states.flatten(0, 1)[picked][None], rank.view(columns.index.shape))

    def _cached_static(
        self, canvas: Canvas, columns: Columns, recompute: StaticColumns, row: range | None, storage: KVStorage
    ) -> tuple[Logits, Int[Tensor, "B"]]:
        """Recompute equally many columns in every row; return the logits and the tokens computed per row."""
        only = None if row is None else slice(row.start, row.stop)
        part = RowKVStorage(storage, columns.rows, recompute.columns, recompute.counts, uniform=True, span=only)
        # Unread entries point to the last column: to read the first, Dream computes one more column.
        read = columns.index.where(columns.read, columns.index[:, -1:])
        output = self._run(canvas.tokens, read, valid=canvas.valid, stale=recompute.columns, storage=part)
        self._stored = canvas
        return self._logits(output), part.tokens_computed

    def _cached(
        self,
        canvas: Canvas,
        columns: Columns,
        visible: Bool[Tensor, "B L"],
        stale: Bool[Tensor, "B L"],
        storage: CacheStorage,
    ) -> tuple[Logits, Int[Tensor, "B"]]:
        """Compute the stale columns in each row; return the logits and the tokens computed per row.

        Rows with all columns stale, rows with the whole answer stale and all other rows are computed in
        separate model calls, so that no row is padded to the width of another group.
        """
        storage.fit(canvas.width)
        if self._stored is not None:
            # Stored keys of a row are outdated if written tokens moved or changed, even if the cache keeps them.
            moved = canvas.changed_since(self._stored)[:, None]
            stale = stale | (canvas.answer & visible & moved)
        self._stored = canvas
        read = columns.scatter(columns.read)
        everything = (stale == visible).all(-1)[columns.rows]
        answer = (stale | ~(canvas.answer & visible)).all(-1)[columns.rows] & ~everything
        groups = [chosen.nonzero()[:, 0] for chosen in (everything, answer, ~(everything | answer))]
        computed, device = torch.zeros_like(canvas.horizon), self._model.device
        outputs: list[Tensor] = []
        for group in groups:
            rows = columns.rows[group]
            if not len(rows):
                continue
            part = storage.at(rows, stale[rows], read[rows], canvas.answer[rows], visible[rows])
            output = self._run(
                canvas.tokens[rows].to(device),
                columns.index[rows].to(device),
                valid=visible[rows].to(device),
                stale=None if part.columns is None else part.columns.to(device),
                storage=part,
            )
            outputs.append(output)
            computed[rows] = part.tokens_computed.to(computed.device)
        order = torch.cat(groups).argsort().to(device)  # back to the order of the rows
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs).index_select(0, order)
        return self._read_logits(output, columns.read[columns.rows]), computed


def check_context_length(prompt: int, horizon: int, max_seq_len: int) -> None:
    """Raise CapacityError if prompt and horizon together exceed the model's context length."""
    if prompt + horizon <= max_seq_len:
        return
    room = max_seq_len - prompt
    advice = "the prompt alone is too long: shorten it"
    if room > 0:
        advice = f"lower the length limit to {room}, or shorten the prompt"
    raise CapacityError(
        f"horizon {horizon} + prompt {prompt} exceeds the model's {max_seq_len} positions; {advice} "
        "(exceed_max_seq_len=True, or --exceed-max-seq-len, decodes anyway)"
    )


LogitsHook = Callable[[int, Canvas, Columns, Tensor], Tensor]
TokensHook = Callable[[int | None, Canvas], Tensor]


@dataclass(frozen=True)
class Hooks:
    """User functions that change the logits of a pass, or the tokens between passes.

    `logits(step, canvas, columns, logits)` returns replacement logits [A, S, V] for the A participating rows
    (`columns.rows`), the S columns read in each (`columns.index`) and the V tokens of the vocabulary.

    `tokens(step, canvas)` returns the tokens [B, L] with which decoding continues. It is called with step None
    before the first pass and then after every pass. It may rewrite answers; changes to prompts are ignored.
    """

    logits: LogitsHook | None = None
    tokens: TokensHook | None = None

    def __post_init__(self) -> None:
        if self.logits is not None:
            check_callable("Hooks", "logits", self.logits, ("step", "canvas", "columns", "logits"))
        if self.tokens is not None:
            check_callable("Hooks", "tokens", self.tokens, ("step", "canvas"))

    def after(self, step: int | None, canvas: Canvas) -> Canvas:
        """Return the canvas with the answer tokens that the tokens hook returns; unchanged without a hook."""
        if self.tokens is None:
            return canvas
        vocab_size, version = canvas.ids.vocab_size, version_of(canvas.tokens)
        tokens = check_tensor("the tokens hook returned", self.tokens(step, canvas), canvas.tokens.shape, torch.long)
        check_unchanged("the tokens hook", canvas.tokens, version)
        changed = canvas.replace_answer(tokens.to(canvas.device))
        outside = changed.tokens[(changed.tokens < 0) | (changed.tokens >= vocab_size)]
        if len(outside):
            raise SettingError(
                f"the tokens hook wrote id {int(outside[0])}; the ids of the model are 0 to {vocab_size - 1}"
            )
        return changed


class TokenCost(NamedTuple):
    """The cost of one row, as ints on the host."""

    forward_passes: int
    tokens_computed: int
    attention_pairs: int


@dataclass(frozen=True, eq=False)
class BatchCost:
    """The forward passes, tokens computed and attention pairs of every row.

    Forward passes are not comparable between canvases of different sizes. Padding is not counted, so a row
    costs the same in a batch as alone. Guidance computes every token twice within one pass. If layers compute
    different numbers of tokens, the mean over the layers is counted, rounded up.
    """

    forward_passes: Int[Tensor, "B"]
    tokens_computed: Int[Tensor, "B"]
    attention_pairs: Int[Tensor, "B"]

    @classmethod
    def zeros(cls, rows: int, device: torch.device | str = "cpu") -> BatchCost:
        zero = torch.zeros(rows, dtype=torch.long, device=device)
        return cls(zero, zero, zero)

    @classmethod
    def stack(cls, costs: Sequence[TokenCost]) -> BatchCost:
        """Return the costs of several rows as one batch, on the CPU."""
        return cls(*(torch.tensor(numbers) for numbers in zip(*costs)))

    def add_pass(
        self, participates: Bool[Tensor, "B"], tokens: Int[Tensor, "B"], attended: Int[Tensor, "B"], *, passes: int = 1
    ) -> BatchCost:
        """Return the cost after one more pass of the participating rows; guidance's second branch has `passes=0`."""
        computed = tokens * participates
        return BatchCost(
            self.forward_passes + passes * participates,
            self.tokens_computed + computed,
            self.attention_pairs + computed * attended,
        )

    def row(self, index: int) -> TokenCost:
        return TokenCost(
            int(self.forward_passes[index]), int(self.tokens_computed[index]), int(self.attention_pairs[index])
        )
