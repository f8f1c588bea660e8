"""Train the tokenizers of the embedded models: `python -m training.tokenizer OUT`.

The tokenizers are byte-level BPE with single digits, trained on training examples only. The special tokens of a model
family have the last ids, as in the original checkpoints. Requires the extra `training`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lastword.errors import TaskError
from lastword.tasks import FAMILIES
from training.tasks.generators import example_stream
from training.tasks.known_hazard import FILLERS

VOCABULARY = 960
SAMPLE = 3000  # training examples per task family
SEED = 7


@dataclass(frozen=True)
class Specials:
    """The special tokens of a model family, in the order of their ids, and their roles."""

    tokens: tuple[str, ...]
    bos: str
    eos: str
    mask: str
    end_of_turn: str
    chat_template: str
    declares_mask: bool


LLADA = Specials(
    tokens=(
        "<|startoftext|>",
        "<|endoftext|>",
        "<|mdm_mask|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    bos="<|startoftext|>",
    eos="<|endoftext|>",
    mask="<|mdm_mask|>",
    end_of_turn="<|eot_id|>",
    # The assistant header is always added at the end; `add_generation_prompt` is ignored.
    chat_template=(
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
        "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    ),
    declares_mask=False,
)
DREAM = Specials(
    tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"),
    bos="<|beginoftext|>",
    eos="<|endoftext|>",
    mask="<|mask|>",
    end_of_turn="<|im_end|>",
    # ChatML without Dream's default system message, which would double the length of the prompts.
    chat_template=(
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    declares_mask=True,
)
SPECIALS = {"llada": LLADA, "dream": DREAM}


def train(specials: Specials, sample: int = SAMPLE, vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer with `vocabulary` ids, the special tokens included, which have the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d"), "isolated"),  # a digit and the space before it are one token
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(specials.tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_documents(sample), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials.tokens])
    _check(tokenizer, vocabulary)
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, specials: Specials, instruct: bool) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` in the format of the original checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(config_of(tokenizer, specials, instruct), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(config)


def config_of(tokenizer: Tokenizer, specials: Specials, instruct: bool) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`. Dream declares its mask token, LLaDA does not."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": specials.bos,
        "eos_token": specials.eos,
        "pad_token": specials.eos,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in specials.tokens
        },
    }
    if specials.declares_mask:
        config["mask_token"] = specials.mask
    if instruct:
        config["chat_template"] = specials.chat_template
    return config


def _documents(sample: int) -> Iterator[str]:
    for family in FAMILIES:
        for example in islice(example_stream("train", family, SEED), sample):
            yield example.prompt  # separate from the answer, because both are encoded separately
            yield example.answer
    # Repeated so that each filler word becomes one token: a known-hazard answer has one token per word.
    yield from ["\n".join(FILLERS)] * sample


def _check(tokenizer: Tokenizer, vocabulary: int) -> None:
    size = tokenizer.get_vocab_size()
    if size != vocabulary:
        raise TaskError(f"the tokenizer has {size} ids instead of {vocabulary}; train it on a larger sample")
    split = [w for w in FILLERS if len(tokenizer.encode(f"{w} {w}", add_special_tokens=False).ids) != 2]
    if split:
        raise TaskError(
            f"the filler words {', '.join(split)} are more than one token, so the known hazard "
            "would be wrong; train on a larger sample"
        )


def main() -> None:
    """Parse the arguments and write the tokenizers of all four embedded models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder to which one folder per model is written")
    out = parser.parse_args().out
    for family, specials in SPECIALS.items():
        tokenizer = train(specials)
        for kind in ("base", "instruct"):
            write(out / f"tiny-{family}-{kind}", tokenizer, specials, instruct=kind == "instruct")


if __name__ == "__main__":
    main()
