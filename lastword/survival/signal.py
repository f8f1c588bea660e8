"""The end signal: per-slot end-token probabilities read from one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.errors import SettingError, WrongTypeError
from lastword.survival.distribution import check_probabilities
from lastword.validation import check_int, check_list, check_type

MAX_CHUNK_SIZE = 2**23  # 64 MB of float64


def token_probabilities(logits: Float[Tensor, "*batch V"], ids: Sequence[int]) -> Float[Tensor, "*batch N"]:
    """softmax(logits) at `ids`, in float64, on the CPU.

    Only the normaliser needs the whole vocabulary, so it is summed a few columns at a time: 1024
    columns of a 126k vocabulary would need 1 GB in float64, and this needs 64 MB. The CPU waits for
    the device once, at the end: a wait per part made the probe of a large batch slower than its pass.
    """
    is_tensor = isinstance(logits, Tensor)
    if not is_tensor or not logits.is_floating_point() or not logits.ndim:
        raise WrongTypeError(
            f"logits of {logits.dtype if is_tensor else type(logits).__name__} were given; they must be a "
            "tensor of floating-point numbers [..., vocabulary]"
        )
    if not isinstance(ids, (list, tuple)):
        check_list("token_probabilities", "ids", ids, "a list of token ids")
    for one in ids:
        check_int("token_probabilities", "ids", one, minimum=0, maximum=logits.shape[-1] - 1)
    flat = logits.reshape(-1, logits.shape[-1])
    columns = torch.tensor(list(ids), dtype=torch.long, device=logits.device)
    # Apple's GPU has no float64; there the normaliser is summed in float32.
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    parts = []
    for chunk in torch.split(flat, max(1, MAX_CHUNK_SIZE // flat.shape[-1])):
        chunk = chunk.to(wide)
        normaliser = chunk.logsumexp(-1, keepdim=True)
        parts.append((chunk[:, columns] - normaliser).exp())
    picked = torch.cat(parts).cpu().double() if parts else torch.empty(0, len(columns)).double()
    return picked.reshape(*logits.shape[:-1], len(columns))


@dataclass(frozen=True, eq=False)
class EndSignal:
    """The probability of an end token in each of T slots, a row per prompt.

    `document` is the token that closes a document and mostly also fills what lies behind it; `turn`
    the token with which chat models close their turn before it, zero for a model without one. Neither
    is a length distribution yet: what they mean depends on how the model was trained, and a reading
    says what it takes them for. `reached` counts the slots known to be text because a word stands
    in the last of them; it is 0 on a canvas of masks.
    """

    document: Float[Tensor, "B T"]
    turn: Float[Tensor, "B T"]
    text_slots: Int[Tensor, "B"]

    def __post_init__(self) -> None:
        for name in ("document", "turn", "text_slots"):
            check_type("EndSignal", name, getattr(self, name), Tensor, "a tensor")
        if self.text_slots.dtype != torch.long:
            raise WrongTypeError(
                f"an end signal with reached of {self.text_slots.dtype} was given; it must be torch.int64"
            )
        if self.document.shape != self.turn.shape or self.text_slots.shape != self.document.shape[:1]:
            raise SettingError(
                f"an end signal of shapes {tuple(self.document.shape)}, {tuple(self.turn.shape)} and "
                f"{tuple(self.text_slots.shape)} was given; document and turn must be [rows, slots] alike "
                "and reached [rows]"
            )
        for name in ("document", "turn"):
            values = check_probabilities(getattr(self, name), f"{name} end's probability")
            object.__setattr__(self, name, values)

    @classmethod
    def from_probabilities(
        cls, document: Float[Tensor, "B T"], turn: Float[Tensor, "B T"] | None = None
    ) -> EndSignal:
        """The signal on a canvas of masks."""
        check_type("EndSignal.from_probabilities", "document", document, Tensor, "a tensor [rows, slots]")
        turn = torch.zeros_like(document) if turn is None else turn
        return cls(document, turn, torch.zeros(document.shape[:1], dtype=torch.long))

    @property
    def either_end(self) -> Float[Tensor, "B T"]:
        """Probability of either end."""
        return (self.document + self.turn).clamp(max=1)

    @property
    def text_mask(self) -> Bool[Tensor, "B T"]:
        """Slots known to be text: the row's answer cannot end in them."""
        return torch.arange(self.document.shape[-1]) < self.text_slots[:, None]

    @property
    def merged(self) -> EndSignal:
        """The two ends as one."""
        return EndSignal(self.either_end, torch.zeros_like(self.turn), self.text_slots)

    def row(self, index: int) -> EndSignal:
        """One prompt's signal, still as a batch of one."""
        return self.select([index])

    def select(self, rows: Sequence[int]) -> EndSignal:
        """Some prompts' signals."""
        index = list(rows)
        return EndSignal(self.document[index], self.turn[index], self.text_slots[index])

    def first_slots(self, slots: int) -> EndSignal:
        """The signal of a canvas with so many slots."""
        reached = self.text_slots.clamp(max=slots)
        return EndSignal(self.document[:, :slots], self.turn[:, :slots], reached)

    def __len__(self) -> int:
        return len(self.document)
