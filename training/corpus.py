"""Examples as flat arrays, and training documents as tensors on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lastword.errors import CheckpointError
from lastword.models.tokenizer import Tokenizer
from training.settings import Settings

MASKS = {"llada": "<|mdm_mask|>", "dream": "<|mask|>"}
END, LLADA_TURN_END = "<|endoftext|>", "<|eot_id|>"


@dataclass(frozen=True, eq=False)
class Examples:
    """Token ids of all prompts and answers in one array: prompt, answer, prompt, answer, ..."""

    tokens: np.ndarray  # uint16
    prompts: np.ndarray  # uint16, length of each prompt
    answers: np.ndarray  # uint16, length of each answer

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[list[int], list[int]]]) -> Examples:
        flat = [token for prompt, answer in pairs for token in (*prompt, *answer)]
        lengths = np.array([(len(prompt), len(answer)) for prompt, answer in pairs], np.uint16)
        return cls(np.array(flat, np.uint16), lengths[:, 0], lengths[:, 1])

    @classmethod
    def join(cls, parts: Iterable[Examples]) -> Examples:
        fields = zip(*((p.tokens, p.prompts, p.answers) for p in parts))
        return cls(*(np.concatenate(field) for field in fields))

    @classmethod
    def read(cls, path: Path, split: str) -> Examples:
        if not path.is_file():
            raise CheckpointError(f"there is no corpus {path}; generate it with `python -m training.data`")
        with np.load(path) as file:
            return cls(*(file[f"{split}_{name}"] for name in ("tokens", "prompts", "answers")))

    def shuffled(self, seed: int) -> Examples:
        """Return the examples in random order, so that a packed row contains documents of different families."""
        order = np.random.default_rng(seed).permutation(len(self))
        lengths = self.prompts.astype(np.int64) + self.answers
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        offsets = np.repeat(starts[order] - np.cumsum(lengths[order]) + lengths[order], lengths[order])
        tokens = self.tokens[offsets + np.arange(len(offsets))]
        return Examples(tokens, self.prompts[order], self.answers[order])


@dataclass(frozen=True)
class Frame:
    """The tokens around a prompt and an answer: those of the chat template (none for plain text) and the end tokens."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    trimmed: int = 0  # number of tokens that the chat template strips from the end of a prompt (its newline)

    @classmethod
    def of(cls, settings: Settings, tokenizer: Tokenizer) -> Frame:
        """Return the frame of the tokenizer's chat template, with the end tokens of the model family."""
        end = token_number(tokenizer, END)
        if settings.rows_are == "packed":
            return cls(ends=(end,))
        text = "Q: x\n"
        chat, whole = tokenizer.chat([{"role": "user", "content": text}]), tokenizer.encode(text)
        for trimmed in (0, 1):
            body = whole[: len(whole) - trimmed]
            for start in range(len(chat) - len(body) + 1):
                if chat[start : start + len(body)] == body:
                    turn = [token_number(tokenizer, LLADA_TURN_END)] if settings.family == "llada" else []
                    before, after = tuple(chat[:start]), tuple(chat[start + len(body) :])
                    return cls(before, after, (*turn, end), trimmed)
        raise CheckpointError(
            "the chat template changes the prompt's tokens, so rows cannot be built from the corpus; "
            "use a template that copies the message unchanged, except for trailing white space"
        )


@dataclass(frozen=True, eq=False)
class Documents:
    """All documents in one tensor. A document is: frame, prompt, frame, answer, end tokens."""

    tokens: Tensor  # [N] int16
    start: Tensor  # [D]
    prompt: Tensor  # [D] number of columns before the answer
    length: Tensor  # [D] number of columns of the document
    fill: int | None  # token that fills the row after a document; None: the next document follows (packed)
    document: Tensor  # [N] index of the document that contains the token

    def places(self, chosen: Tensor, width: int) -> tuple[Tensor, Tensor]:  # [B] -> two [B, W]
        """Return, for each column of `rows`, its document and its distance from the start of that document's answer.

        Columns of a prompt have negative distances. All columns of a padded row belong to one document.
        """
        columns = torch.arange(width, device=chosen.device)
        if self.fill is not None:
            owner = chosen[:, None].expand(-1, width)
            return owner, columns - self.prompt[chosen][:, None]
        at = (self.start[chosen][:, None] + columns) % len(self.tokens)
        owner = self.document[at].long()
        return owner, at - self.start[owner] - self.prompt[owner]

    def rows(self, chosen: Tensor, width: int) -> Tensor:  # [B] -> [B, W]
        """Return the `width` columns that begin at the start of each chosen document."""
        columns = torch.arange(width, device=chosen.device)
        at = (self.start[chosen][:, None] + columns) % len(self.tokens)
        tokens = self.tokens[at].long()
        if self.fill is not None:
            tokens = tokens.masked_fill(columns >= self.length[chosen][:, None], self.fill)
        return tokens


def documents(examples: Examples, frame: Frame, fill: int | None, device: torch.device) -> Documents:
    """Build the documents of all examples with their frames, without a loop over examples."""
    before, between, ends = len(frame.before), len(frame.after), len(frame.ends)
    untrimmed, answers = examples.prompts.astype(np.int64), examples.answers.astype(np.int64)
    kept = untrimmed - frame.trimmed
    prompts = before + kept + between
    lengths = prompts + answers + ends
    starts = np.cumsum(lengths) - lengths
    flat = np.empty(lengths.sum(), np.int16)
    source = np.cumsum(untrimmed + answers) - untrimmed - answers
    for at, pieces in (
        (starts, frame.before),
        (starts + before + kept, frame.after),
        (starts + prompts + answers, frame.ends),
    ):
        flat[at[:, None] + np.arange(len(pieces))] = np.array(pieces, np.int16)
    for at, origin, count in ((starts + before, source, kept), (starts + prompts, source + untrimmed, answers)):
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        flat[np.repeat(at, count) + within] = examples.tokens[np.repeat(origin, count) + within]
    tokens, start, prompt, length = (torch.from_numpy(array).to(device) for array in (flat, starts, prompts, lengths))
    document = torch.arange(len(lengths), dtype=torch.int32, device=device)
    document = document.repeat_interleave(length)
    return Documents(tokens, start, prompt, length, fill, document)


def token_number(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token; raise CheckpointError if the tokenizer lacks it."""
    token_id = tokenizer.id_of(token)
    if token_id is None:
        raise CheckpointError(f"the tokenizer has no {token}; train it with `python -m training.tokenizer`")
    return token_id


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in a folder; raise CheckpointError if there is none."""
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer is None:
        raise CheckpointError(f"{folder} has no tokenizer; run `python -m training.tokenizer out/recipe`")
    return tokenizer
