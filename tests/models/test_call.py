"""A model called with tokens alone returns the logits of all columns."""

import pytest
import torch

import lastword
from lastword.errors import WrongTypeError
from lastword.models.adapter import Adapter


def adapter(model, **settings):
    """A native model behind an adapter of its logits of all columns."""
    return Adapter(lambda tokens: model(tokens), model.ids, **settings)


@pytest.fixture(params=["llada", "dream", "adapter", "toy"])
def model(request, llada, dream, toy):
    return {"llada": llada, "dream": dream, "adapter": adapter(llada), "toy": toy}[request.param]


@pytest.fixture
def tokens(model):
    """Two rows of words and masks."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 20, (2, 9), generator=generator)
    words[:, 6:] = model.ids.mask
    return words


def every_column(tokens):
    return torch.arange(tokens.shape[1]).expand(tokens.shape)


def test_logits_without_columns_are_those_of_all_columns(model, tokens):
    logits = model(tokens)
    assert logits.shape == (2, 9, model.ids.vocab_size)
    assert torch.equal(logits, model(tokens, every_column(tokens)))
    torch.testing.assert_close(logits[:, [7, 2]], model(tokens, torch.tensor([[7, 2]] * 2)))


def test_padding_is_left_out_of_all_columns(model, tokens):
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[0, :3] = False
    logits = model(tokens, valid=valid)
    torch.testing.assert_close(logits, model(tokens, every_column(tokens), valid=valid))
    alone = model(tokens[:1, 3:])  # some predict a token from the column before it, which the first one lacks
    torch.testing.assert_close(logits[:1, 4:], alone[:, 1:], atol=1e-4, rtol=1e-4)


def test_the_next_token_can_be_chosen_by_hand(toy):
    tokens = torch.tensor([[0, 1, 2, toy.ids.mask]])
    assert toy.tokenizer.decode(toy(tokens)[0, 3:].argmax(-1).tolist()) == "d"


@pytest.mark.parametrize("tokens", [[1, 2], torch.tensor([1, 2]), "abc", None], ids=["list", "row", "text", "nothing"])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_batch_of_ids_is_refused(model, tokens):
    with pytest.raises(WrongTypeError, match=r"call it with a tensor of token ids \[B, L\], such as torch.tensor"):
        model(tokens)


def test_decoding_through_an_adapter_of_all_columns_equals_the_native_model(llada):
    theirs, ours = (lastword.generate(one, [5, 42, 17], length="fixed:6") for one in (adapter(llada), llada))
    assert theirs.tokens == ours.tokens
