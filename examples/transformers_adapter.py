"""Adapter: a masked language model of transformers, or any function from tokens to logits, as a model.

python examples/transformers_adapter.py

Where transformers is installed a small BertForMaskedLM is made from a config: random weights, nothing is
downloaded, and the answer is noise. Where it is not, a function of the same shape stands in for it. For a
trained model put `from_pretrained(...)` in its place.
"""

import torch

import lastword

VOCABULARY, MASK, END = 100, 99, 98


def masked_model():
    """Something that takes ids [rows, columns] and returns logits, or an object that has `.logits`."""
    torch.manual_seed(0)
    try:
        from transformers import BertConfig, BertForMaskedLM
    except ImportError:
        print("transformers is not installed: a function stands in for its model")
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
    shifted=False,  # True where the output at a column predicts the next one, as Dream's does
    # takes_mask=True would run unequal rows as one padded batch. BERT counts positions from the
    # padding on, which changes its answers: without it such rows are run one by one.
    max_seq_len=256,
    name="tiny-bert",
)
prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]  # ids; give the Adapter a tokenizer= to ask with text
answers = lastword.generate(model, prompts, length=lastword.Survival(limit=32))
for prompt, answer in zip(prompts, answers):
    alone = lastword.generate(model, prompt, length=lastword.Survival(limit=32))
    print(f"{answer.horizon} slots, {answer.cost.forward_passes} passes, {len(answer.tokens)} tokens;",
          "as alone" if answer.tokens == alone.tokens else "not as alone")  # fmt: skip
