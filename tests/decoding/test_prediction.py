from __future__ import annotations

import pytest
import torch

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import NumericError

INF = torch.inf


def test_views_stand_at_the_columns_read_and_unread_ones_are_never_chosen(predicted, sure):
    prediction = predicted(sure(0.9, 0.5), sure(0.9), prompt=2)
    columns = prediction.columns
    assert columns.index.tolist() == [[2, 3], [2, 2]]
    assert prediction.read_mask.int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert prediction.tokens.tolist() == [[0, 0], [0, 6]]
    assert prediction.tokens_on_canvas.tolist() == [[6, 6, 0, 0], [6, 6, 0, 6]]
    assert prediction.confidence.flatten().tolist() == pytest.approx([0.9, 0.5, 0.9, -INF])
    assert (prediction.entropy[1, 1], prediction.margin[1, 1]) == (INF, -INF)
    assert (prediction.gap[1, 1], prediction.end_probability[1, 1]) == (-INF, 0)
    assert prediction.argmax_tokens.tolist() == [[0, 0], [0, 6]]


def test_a_row_that_took_no_part_is_never_chosen_from(ids, sure):
    canvas = Canvas.blank([[0], [0]], torch.tensor([2, 2]), ids)
    read = canvas.answer & torch.tensor([[False], [True]])
    logits = sure(0.9, 0.5)[None].float()  # of the second row alone
    prediction = Prediction.from_logits(logits, Columns.from_mask(read), canvas, Sampling(), RowGenerators([0, 1]))
    assert prediction.columns.rows.tolist() == [1]
    assert prediction.tokens.tolist() == [[6, 6], [0, 0]]
    assert prediction.confidence.flatten().tolist() == pytest.approx([-INF, -INF, 0.9, 0.5])
    assert prediction.read_mask.int().tolist() == [[0, 0, 0], [0, 1, 1]]
    assert prediction.covers_all(canvas.answer).tolist() == [False, True]
    assert prediction.covers_all(torch.zeros_like(read)).tolist() == [False, True]


def test_margin_gap_and_entropy_by_hand(predicted):
    chances = torch.tensor([[0.5, 0.3, 0.2, 0, 0, 0, 0, 0]], dtype=torch.float64)
    prediction = predicted((chances + 1e-30).log())
    assert prediction.margin[0, 0].item() == pytest.approx(0.2)
    assert prediction.gap[0, 0].item() == pytest.approx(torch.log(torch.tensor(5 / 3)).item())
    entropy = -(chances[0, :3] * chances[0, :3].log()).sum().item()
    assert prediction.entropy[0, 0].item() == pytest.approx(entropy, abs=1e-6)


def test_confidence_is_float32_where_bfloat16_would_tie(ids):
    canvas = Canvas.blank([[0]], torch.tensor([2]), ids)
    logits = torch.zeros(1, 2, 8, dtype=torch.bfloat16)
    logits[0, :, 0] = torch.tensor([9.0, 10.0])
    columns = Columns.from_mask(canvas.answer)
    confidence = Prediction.from_logits(logits, columns, canvas, Sampling(), RowGenerators([0])).confidence[0]
    assert confidence.dtype == torch.float32
    assert confidence[0] < confidence[1] < 1


def test_ending_sums_every_end_token_and_ignores_sampling(predicted, sure):
    logits = sure(0.3)
    plain = predicted(logits)
    banned = predicted(logits, sampling=Sampling(forbid_end=True, end_last=True, temperature=2.0))
    assert plain.end_probability[0, 0].item() == pytest.approx(0.1)
    assert plain.probability_of(7, 0)[0, 0].item() == pytest.approx(0.4)
    assert plain.end_probability.dtype == torch.float64
    assert torch.equal(plain.end_probability, banned.end_probability)


def test_the_mask_gives_way_to_the_next_best_token_unless_it_may_be_proposed(predicted):
    logits = torch.zeros(1, 8)
    logits[0, 6], logits[0, 2] = 5.0, 3.0
    assert predicted(logits).tokens[0, 0].item() == 2
    asked = predicted(logits, sampling=Sampling(propose_mask=True))
    assert asked.tokens[0, 0].item() == 6


def test_equal_logits_propose_the_lowest_id(predicted):
    assert predicted(torch.zeros(3, 8)).tokens[0].tolist() == [0, 0, 0]


def test_forbidden_ends_are_not_proposed(predicted):
    logits = torch.zeros(1, 8)
    logits[0, 7], logits[0, 3] = 5.0, 3.0
    assert predicted(logits).tokens[0, 0].item() == 7
    assert predicted(logits, sampling=Sampling(forbid_end=True)).tokens[0, 0].item() == 3


def test_ends_come_last_where_asked(predicted):
    logits = torch.zeros(2, 8)
    logits[0, 7], logits[1, 3] = 9.0, 1.0
    prediction = predicted(logits, sampling=Sampling(end_last=True))
    assert prediction.tokens[0].tolist() == [7, 3]
    assert prediction.confidence[0, 0].item() == 0
    assert prediction.confidence[0, 1].item() > 0


@pytest.mark.parametrize("score", ["model", "draw"])
def test_draws_repeat_per_seed_and_do_not_depend_on_the_batch(predicted, score):
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    short = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    sampling = Sampling(temperature=1.0, score=score)
    alone = predicted(logits, sampling=sampling, seeds=[11]).tokens[0]
    again = predicted(logits, sampling=sampling, seeds=[11]).tokens[0]
    other = predicted(logits, sampling=sampling, seeds=[12]).tokens[0]
    batched = predicted(short, logits, sampling=sampling, seeds=[3, 11]).tokens
    assert torch.equal(alone, again)
    assert torch.equal(alone, batched[1])
    assert not torch.equal(alone, other)
    assert torch.equal(predicted(short, sampling=sampling, seeds=[3]).tokens[0], batched[0, :2])


@pytest.mark.parametrize("score", ["model", "draw"])
def test_draws_stay_inside_the_filter_and_off_the_mask(predicted, score):
    logits = torch.zeros(200, 8)
    logits[:, 2], logits[:, 5], logits[:, 6] = 3.0, 2.5, 9.0
    sampling = Sampling(temperature=1.0, top_k=2, score=score)
    assert set(predicted(logits, sampling=sampling).tokens[0].tolist()) == {2, 5}


@pytest.mark.parametrize("unwanted", ["mask", "end"])
def test_rules_judge_a_drawn_token_by_the_distribution_it_was_drawn_from(predicted, unwanted):
    # 0.9 of the mass cannot be drawn; of the rest, words 0 and 1 make up the nucleus.
    chances = torch.full((20, 8), 1e-9)
    chances[:, [6 if unwanted == "mask" else 7, 0, 1]] = torch.tensor([0.9, 0.06, 0.04])
    prediction = predicted(
        chances.log(), sampling=Sampling(temperature=1.0, top_p=0.8, score="draw", forbid_end=unwanted == "end")
    )
    tokens, confidence = prediction.tokens[0], prediction.confidence[0]
    assert set(tokens.tolist()) == {0, 1}
    expected = torch.where(tokens == 0, 0.6, 0.4)
    torch.testing.assert_close(confidence, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, score="draw")])
def test_nan_logits_are_refused_with_advice(predicted, sampling):
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    with pytest.raises(NumericError, match=r"NaN.*float32"):
        predicted(logits, sampling=sampling)


@pytest.mark.parametrize("view", ["confidence", "margin", "entropy"])
def test_infinite_logits_are_refused_once_they_are_judged(predicted, view):
    logits = torch.zeros(1, 8)
    logits[0, 3] = torch.inf
    with pytest.raises(NumericError):
        getattr(predicted(logits), view)


def test_views_computed_in_pieces_equal_views_computed_at_once(predicted, monkeypatch):
    import sys

    logits = torch.randn(9, 8, generator=torch.Generator().manual_seed(5))
    sampling = Sampling(temperature=1.0)
    whole = predicted(logits, sampling=sampling, seeds=[1])
    expected = (whole.tokens, whole.confidence, whole.margin, whole.entropy)
    monkeypatch.setattr(sys.modules["lastword.decoding.prediction"], "MAX_CHUNK_NUMBERS", 16)
    pieces = predicted(logits, sampling=sampling, seeds=[1])
    found = (pieces.tokens, pieces.confidence, pieces.margin, pieces.entropy)
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


def test_a_pass_speaks_for_rows_it_read_in_full(predicted, sure):
    prediction = predicted(sure(0.5, 0.5), sure(0.5, 0.5, 0.5))
    canvas = prediction.canvas
    assert prediction.covers_all(canvas.answer).tolist() == [True, True]
    assert prediction.covers_all(canvas.valid).tolist() == [False, False]  # the prompt was not read
    first = torch.tensor([[False, True, False, False]] * 2)
    assert prediction.covers_all(first).tolist() == [True, True]


def test_the_likeliest_token_is_the_model_s_whatever_may_be_proposed(predicted, ids):
    logits = torch.zeros(2, 8)
    logits[0, ids.end], logits[1, ids.mask] = 5.0, 5.0
    prediction = predicted(logits, sampling=Sampling(forbid_end=True))
    assert prediction.argmax_tokens[0].tolist() == [ids.end, ids.mask]
    assert prediction.tokens[0].tolist() == [0, 0]
