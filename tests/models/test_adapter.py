from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import lastword
from lastword.errors import NumericError, SettingError
from lastword.models.adapter import Adapter
from lastword.models.base import MaskPredictor
from lastword.models.storage import KVStorage, RowKVStorage

PROMPTS = [[5, 42, 17, 100, 63], [9, 11], [7]]


@pytest.fixture(scope="module")
def network(llada):
    """The golden LLaDA's own network, as somebody else's model."""

    def forward(tokens, attention_mask=None):
        valid = None if attention_mask is None else attention_mask.bool()
        hidden = llada.network.hidden(tokens, valid)
        return llada.head(hidden)

    return forward


def spell(column_plus, ids):
    """A model whose output at column c says word (c + column_plus) % 6."""

    def forward(tokens):
        word = (torch.arange(tokens.shape[1]) + column_plus) % 6
        return torch.nn.functional.one_hot(word, ids.vocab_size).float().expand(len(tokens), -1, -1)

    return forward


def test_it_is_a_mask_predictor(ids):
    assert isinstance(Adapter(spell(0, ids), ids), MaskPredictor)


def test_aligned_logits_are_read_where_they_stand(ids):
    logits = Adapter(spell(0, ids), ids)(torch.zeros(1, 5, dtype=torch.long), torch.tensor([[1, 4]]))
    assert logits.argmax(-1).tolist() == [[1, 4]]


def test_shifted_logits_are_read_one_column_earlier(ids):
    model = Adapter(spell(1, ids), ids, shifted=True)
    logits = model(torch.zeros(1, 5, dtype=torch.long), torch.tensor([[1, 4]]))
    assert logits.argmax(-1).tolist() == [[1, 4]]


def test_an_output_object_with_logits_will_do(ids):
    plain = spell(0, ids)
    model = Adapter(lambda tokens: SimpleNamespace(logits=plain(tokens)), ids)
    assert model(torch.zeros(1, 3, dtype=torch.long), torch.tensor([[2]])).argmax().item() == 2


def test_takes_mask_hands_padding_over_in_one_call(ids):
    calls = []

    def forward(tokens, attention_mask=None):
        calls.append(attention_mask)
        return spell(0, ids)(tokens)

    model = Adapter(forward, ids, takes_mask=True)
    tokens, read = torch.zeros(2, 3, dtype=torch.long), torch.tensor([[2], [2]])
    model(tokens, read, valid=torch.tensor([[True, True, True], [False, True, True]]))
    model(tokens, read, valid=torch.ones(2, 3, dtype=torch.bool))
    assert calls[0].tolist() == [[1, 1, 1], [0, 1, 1]]
    assert calls[1] is None


def test_without_mask_rows_are_run_alone_without_their_padding(ids):
    calls = []

    def forward(tokens):
        calls.append(tokens.tolist())
        return spell(0, ids)(tokens)

    tokens = torch.tensor([[1, 2, 6], [7, 3, 6]])
    valid = torch.tensor([[True, True, True], [False, True, True]])
    logits = Adapter(forward, ids)(tokens, torch.tensor([[2], [2]]), valid=valid)
    assert calls == [[[1, 2, 6]], [[3, 6]]]
    assert logits.argmax(-1).tolist() == [[2], [1]]


@pytest.mark.parametrize("takes_mask", [True, False])
def test_the_golden_network_through_an_adapter_decodes_like_the_native_model(llada, network, takes_mask):
    wrapped = Adapter(network, llada.ids, takes_mask=takes_mask, max_seq_len=llada.max_seq_len)
    settings = {"length": lastword.Survival(40), "block": 8}
    native = lastword.generate(llada, PROMPTS, **settings)
    adapted = lastword.generate(wrapped, PROMPTS, **settings)
    assert [a.canvas for a in adapted] == [n.canvas for n in native]
    assert [a.cost for a in adapted] == [n.cost for n in native]


def test_the_golden_dream_through_a_shifted_adapter_decodes_like_the_native_model(dream):
    def raw(tokens):
        return dream.head(dream.network.hidden(tokens))

    wrapped = Adapter(raw, dream.ids, shifted=True)
    native = lastword.generate(dream, PROMPTS, length="fixed:9", unmask="lowest-entropy")
    adapted = lastword.generate(wrapped, PROMPTS, length="fixed:9", unmask="lowest-entropy")
    assert [a.canvas for a in adapted] == [n.canvas for n in native]


def test_positions_are_respected(ids):
    model = Adapter(spell(0, ids), ids, max_seq_len=8)
    with pytest.raises(lastword.errors.CapacityError):
        lastword.generate(model, [1, 2, 3], length="fixed:6")


@pytest.mark.parametrize("shape", [(1, 2, 8), (1, 3, 7), (3, 8)])
def test_logits_of_the_wrong_shape_are_refused(ids, shape):
    model = Adapter(lambda tokens: torch.zeros(shape), ids)
    with pytest.raises(NumericError, match="shape"):
        model(torch.zeros(1, 3, dtype=torch.long), torch.tensor([[2]]))


@pytest.mark.parametrize("output", [(None,), None, "logits"])
def test_an_output_without_logits_is_refused(ids, output):
    model = Adapter(lambda tokens: output, ids)
    with pytest.raises(lastword.LastwordError):
        model(torch.zeros(1, 3, dtype=torch.long), torch.tensor([[2]]))


def test_a_tuple_that_starts_with_logits_will_do(ids):
    model = Adapter(lambda tokens: (torch.ones(1, 3, 8), "states"), ids)
    assert model(torch.zeros(1, 3, dtype=torch.long), torch.tensor([[2]])).shape == (1, 1, 8)


def test_it_cannot_be_cached(ids):
    with pytest.raises(SettingError, match="NoCache"):
        Adapter(spell(0, ids), ids)(
            torch.zeros(1, 3, dtype=torch.long),
            torch.tensor([[2]]),
            stale=torch.tensor([[2]]),
            storage=RowKVStorage(KVStorage(1, 3), torch.tensor([0]), None, torch.zeros(1).long()),
        )
