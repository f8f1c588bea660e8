"""Decode with a masked language model of transformers, or with any function from tokens to logits.

python examples/transformers_adapter.py

If transformers is installed, the model is a small BertForMaskedLM with random weights; otherwise it is a plain
function with the same arguments. Its answers are noise. For a trained model, use `from_pretrained(...)`.
"""

import torch

import lastword

VOCABULARY, MASK, END = 100, 99, 98


def masked_model():
    """Return a function that takes ids [rows, columns] and returns logits, or an object with `.logits`."""
    torch.manual_seed(0)
    try:
        from transformers import BertConfig, BertForMaskedLM
    except ImportError:
        print("transformers is not installed: a plain function replaces its model")
        embed, head = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, VOCABULARY)
        return lambda input_ids: head(embed(input_ids).cumsum(1))
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=256,
    )  # fmt: skip
    return BertForMaskedLM(config).eval()


model = lastword.Adapter(
    masked_model(),
    lastword.TokenIds(mask=MASK, end=END, pad=END, vocab_size=VOCABULARY),
    shifted=False,  # True if the output at a column predicts the next token, as in Dream
    # takes_mask=True would decode prompts of different lengths as one padded batch. BERT counts padding as
    # positions, which changes its answers, so prompts of different lengths are computed row by row here.
    max_seq_len=256,
    name="tiny-bert",
)
prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]  # token ids; with Adapter(tokenizer=...), prompts can be text
answers = lastword.generate(model, prompts, length=lastword.Survival(limit=32))
for prompt, answer in zip(prompts, answers):
    solo = lastword.generate(model, prompt, length=lastword.Survival(limit=32))
    same = "equal to its solo run" if answer.tokens == solo.tokens else "different from its solo run"
    print(f"{answer.horizon} slots, {answer.cost.forward_passes} forward passes, {len(answer.tokens)} tokens; {same}")
