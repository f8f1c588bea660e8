from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")

from lastword.tasks import FAMILIES, load_frozen
from training.tokenizer import DREAM, LLADA, SPECIALS, Specials, config_of, train, write

AGAIN = """
from training.tokenizer import LLADA, train
print(train(LLADA, sample=60, vocabulary=640).to_str())
"""


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_come_back(tokenizer: Tokenizer, name: str) -> None:
    for example in load_frozen("validation", name):
        for text in (example.prompt, example.answer):
            assert tokenizer.decode(tokenizer.encode(text).ids) == text
    odd = "Zoë\t12.5 €\n  \U0001f600"
    assert tokenizer.decode(tokenizer.encode(odd).ids) == odd


def test_a_token_holds_at_most_one_digit(tokenizer: Tokenizer) -> None:
    assert max(sum(c.isdigit() for c in token) for token in tokenizer.get_vocab()) == 1


def test_special_tokens_come_last_and_are_single(tokenizer: Tokenizer) -> None:
    size = tokenizer.get_vocab_size()
    assert size % 64 == 0
    ids = [tokenizer.token_to_id(token) for token in LLADA.tokens]
    assert ids == list(range(size - len(ids), size))
    assert tokenizer.encode("a<|endoftext|>b").ids[1] == tokenizer.token_to_id("<|endoftext|>")


@pytest.mark.full
def test_training_is_deterministic() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", AGAIN],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


@pytest.mark.parametrize("specials", SPECIALS.values(), ids=SPECIALS)
@pytest.mark.parametrize("instruct", [False, True])
def test_files_load_with_our_own_reader(tmp_path: Path, specials: Specials, instruct: bool) -> None:
    from lastword.models.tokenizer import Tokenizer as Reader

    trained = train(specials, sample=60, vocabulary=640)
    write(tmp_path, trained, specials, instruct)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == config_of(trained, specials, instruct)
    reader = Reader.from_folder(tmp_path)
    assert reader is not None
    assert (reader.bos, reader.eos) == (specials.bos, specials.eos)
    assert (reader.chat_template is not None) == instruct


def test_chat_layouts() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    messages = [{"role": "user", "content": "Add 1 and 2.\n"}]
    rendered = {
        name: ImmutableSandboxedEnvironment()
        .from_string(specials.chat_template)
        .render(messages=messages, bos_token=specials.bos, add_generation_prompt=True)
        for name, specials in SPECIALS.items()
    }
    assert rendered["llada"] == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nAdd 1 and 2.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert rendered["dream"] == ("<|im_start|>user\nAdd 1 and 2.\n<|im_end|>\n<|im_start|>assistant\n")
    assert DREAM.declares_mask
