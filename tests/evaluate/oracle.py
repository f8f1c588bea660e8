"""A model that knows what to answer: it goes through the whole bridge, tokenizer and decoding included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import lastword
from lastword.canvas.tokens import TokenIds
from lastword.models.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|mask|>", "<|end|>", "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>"]
# One pass fills everything, since the oracle is sure of everything.
AT_ONCE = lastword.Recipe(length=lastword.Fixed(2048), unmask=lastword.AboveThreshold(0.5))


def byte_tokenizer(*, template: str | None = None) -> Tokenizer:
    """A token per byte, a few special ones, and a chat template if asked for."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE({byte: at for at, byte in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return Tokenizer(core, bos="<|begin|>", eos="<|end|>", chat_template=template)


def oracle(answers: Mapping[str, str], *, template: str | None = None, positions: int = 2**31) -> Any:
    """The model that answers each of these prompts, given as the text their ids stand for."""
    tokenizer = byte_tokenizer(template=template)
    mask, end = tokenizer.id_of("<|mask|>"), tokenizer.id_of("<|end|>")
    assert mask is not None
    assert end is not None
    known = {
        tuple(tokenizer.encode_with_special_tokens(prompt)): tokenizer.encode(text) for prompt, text in answers.items()
    }
    ids = TokenIds(mask=mask, end=end, pad=end, vocab_size=tokenizer.size)

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, ids.vocab_size)
        for row, given in enumerate(tokens.tolist()):
            start = given.index(mask)
            slots = len(given) - start
            answer = known[tuple(given[:start])] + [end] * slots
            logits[row, range(start, len(given)), answer[:slots]] = 50.0
        return logits

    return lastword.Adapter(forward, ids, max_seq_len=positions, tokenizer=tokenizer)


def reference(task: str, doc: Mapping[str, Any]) -> str:
    """The right answer to a document of a task, as a model should put it."""
    if task.startswith("gsm8k"):
        return f" {doc['answer']}"
    if task.startswith("bbh"):
        return f"So the answer is {doc['target']}."
    if task.startswith("minerva_math"):
        last = f"Final Answer: The final answer is ${doc['answer']}$. I hope it is correct."
        return f" {doc['solution']}\n{last}"
    if task.startswith("humaneval"):
        return doc["canonical_solution"]
    if task == "mbpp_instruct":  # its prompt ends with the fence, its filter wants a line break there
        return f"\n{doc['code']}\n```"
    return f"{doc['code']}\n[DONE]"
