from __future__ import annotations

import math

import pytest
import torch

from lastword.canvas.tokens import TokenIds
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import SettingError

IDS = TokenIds(mask=6, end=7, pad=7, vocab_size=8, turn_ends=(5,))
CHANCES = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]])


def kept(sampling, logits):
    return sampling.distribution(logits)[0].gt(0).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"guidance": -1.0},
        {"guidance": math.nan},
    ],
)
def test_settings_outside_their_range_are_refused_by_name(setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        Sampling(**setting)


def test_unknown_score_is_refused(in_plain_python):
    code = "lastword.Sampling(score='best')"
    assert in_plain_python([code])[code] == "SettingError"


def test_candidates_are_never_the_mask_unless_asked():
    logits = torch.zeros(1, 8)
    assert Sampling().candidate_logits(logits, IDS)[0].isneginf().nonzero().flatten().tolist() == [6]
    assert not Sampling(propose_mask=True).candidate_logits(logits, IDS).isneginf().any()


def test_forbid_end_takes_the_document_end_out_of_both_views():
    sampling = Sampling(forbid_end=True, propose_mask=True)
    for view in (sampling.candidate_logits, sampling.scored_logits):
        assert view(torch.zeros(1, 8), IDS)[0].isneginf().nonzero().flatten().tolist() == [7]


def test_end_last_still_proposes_ends_but_judges_them_at_zero():
    sampling = Sampling(end_last=True, propose_mask=True)
    assert not sampling.candidate_logits(torch.zeros(1, 8), IDS).isneginf().any()
    assert sampling.scored_logits(torch.zeros(1, 8), IDS)[0].softmax(-1)[[5, 7]].tolist() == [0, 0]


def test_views_leave_the_logits_alone():
    logits = torch.zeros(1, 8)
    Sampling(forbid_end=True, end_last=True).scored_logits(logits, IDS)
    Sampling(forbid_end=True).candidate_logits(logits, IDS)
    assert not logits.any()


@pytest.mark.parametrize(
    ("setting", "tokens"),
    [
        ({"top_p": 0.3}, [0]),
        ({"top_p": 0.41}, [0, 1]),  # the token that crosses the bound stays
        ({"top_p": 0.8}, [0, 1, 2]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.8, "top_k": 2}, [0, 1]),
    ],
)
def test_filters_keep_the_nucleus_and_the_k_best(setting, tokens):
    sampling = Sampling(temperature=1.0, score="draw", **setting)
    assert kept(sampling, CHANCES.log()) == tokens


def test_filters_follow_the_tokens_not_the_places():
    shuffled = CHANCES[:, [4, 2, 0, 3, 1]].log()
    assert kept(Sampling(temperature=1.0, top_k=2, score="draw"), shuffled) == [2, 4]


def test_temperature_sharpens_before_the_nucleus_is_taken():
    # At temperature 0.25 the best token holds 0.74 of the mass, at 1 only 0.4.
    assert kept(Sampling(temperature=0.25, top_p=0.7, score="draw"), CHANCES.log()) == [0]
    assert kept(Sampling(temperature=1.0, top_p=0.7, score="draw"), CHANCES.log()) == [0, 1]


def test_rules_judge_by_the_model_or_by_the_draw():
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    plain = logits.softmax(-1)
    by_model = Sampling(temperature=0.5).scored_logits(logits, IDS).softmax(-1)
    by_draw = Sampling(temperature=0.5, score="draw", propose_mask=True).scored_logits(logits, IDS)
    torch.testing.assert_close(by_model, plain)
    torch.testing.assert_close(by_draw, logits / 0.5)


def test_gumbel_noise_is_float64_and_draws_the_tempered_distribution():
    sampling, dice = Sampling(temperature=1.0), RowGenerators([0])
    noise = dice.uniform(0, 20_000, 5, dtype=torch.float64)
    noisy = sampling.add_noise(CHANCES.log().expand(20_000, -1), noise)
    assert noisy.dtype == torch.float64
    shares = noisy.argmax(-1).bincount(minlength=5) / 20_000
    torch.testing.assert_close(shares, CHANCES[0], atol=0.02, rtol=0)


def test_gumbel_noise_is_that_of_the_authors_formula():
    noise = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(4))
    theirs = logits.double().exp() / (-noise.log()) ** 0.7
    ours = Sampling(temperature=0.7).add_noise(logits, noise)
    torch.testing.assert_close(ours.exp(), theirs)


def test_dice_repeat_per_seed_and_rows_do_not_share():
    first, second = RowGenerators([5, 6]), RowGenerators([6, 5])
    drawn = first.uniform(0, 4)
    assert torch.equal(drawn, second.uniform(1, 4))
    assert not torch.equal(drawn, first.uniform(1, 4))
    assert len(first) == 2


def test_dice_choose_in_proportion_and_without_replacement():
    weights = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert set(RowGenerators([0]).multinomial(0, weights, 2, replace=False).tolist()) == {1, 2}


def test_numbers_for_columns_are_those_each_row_draws_alone():
    where = torch.tensor([[False, True, True], [False, False, False], [True, False, True]])
    numbers = RowGenerators([5, 6, 7]).uniform_at(where, torch.float64)
    for row, seed in ((0, 5), (2, 7)):
        alone = RowGenerators([seed]).uniform(0, 2, dtype=torch.float64)
        assert numbers[row, where[row]].tolist() == alone.tolist()
    assert numbers.dtype == torch.float64
    assert not numbers[~where].any()


def test_a_row_without_columns_draws_nothing():
    dice = RowGenerators([5, 6])
    dice.uniform_at(torch.tensor([[True, True], [False, False]]))
    assert dice.uniform(1, 3).tolist() == RowGenerators([6]).uniform(0, 3).tolist()
    assert RowGenerators([5]).uniform_at(torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0, 0]]
