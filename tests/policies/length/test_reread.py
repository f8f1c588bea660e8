from __future__ import annotations

import pytest
import torch

import lastword
from lastword import (
    Adapter,
    Auto,
    Boundary,
    Cheapest,
    EndedBy,
    Finish,
    GrowWhenFull,
    LengthDistribution,
    Mean,
    Quantile,
    Recipe,
    Reread,
    Scaled,
    StopAtEnd,
    Survival,
    TokenIds,
)
from lastword.canvas.canvas import Clock
from lastword.errors import SettingError
from lastword.policies.length.reread import RereadState
from lastword.survival.interpretation import EndSignal

END, MASK = 7, 6
PROMPT = 1


def ending(*chances):
    """Logits [T, 8]: the end with these chances, word 1 else."""
    chance = torch.tensor(chances, dtype=torch.float64)
    logits = torch.full((len(chances), 8), -torch.inf, dtype=torch.float64)
    logits[:, END], logits[:, 1] = chance.log(), (1 - chance).log()
    return logits


def reread(policy, predicted, answer, chances, believed, block=2):
    """The canvas after a pass with these chances that leaves the answer so, and the hazards believed then.

    The plan believed `believed`.
    """
    heard = RereadState.initial(LengthDistribution(torch.tensor([believed])))
    canvas, state = revised(policy, predicted(ending(*chances)), answer, heard, block)
    return canvas, state.hazard[0].tolist()


def revised(policy, prediction, answer, heard, block=2):
    before = prediction.canvas
    clock = Clock.start(before).tick(before, block)
    canvas = before.replace_answer(torch.tensor([[0] * PROMPT + answer]))
    return policy.revise(canvas, prediction, clock, heard)


HALF = [0.9, 0.9, 0.5, 0.5, 0.5, 0.5]  # words stand in the first two: what is said there is void
OLD = [0.01] * 6 + [0.25, 1.0]  # what the probe believed: slots 7 and 8 lie behind the canvas


def test_new_hazards_are_joined_to_the_old_ones_behind_the_canvas(predicted):
    canvas, hazard = reread(Reread(Survival(8)), predicted, [1, 2, *[MASK] * 4], HALF, OLD)
    assert hazard == pytest.approx([0, 0, *[0.5] * 4, 0.25, 1])
    # Left: 1 + 1/2 + 1/4 + 1/8 + 1/16 and 3/4 of that: 1.984 slots, so two.
    assert canvas.horizon.tolist() == [2 + 2]
    assert canvas.answer_ids(0) == [1, 2, MASK, MASK]


def test_an_answer_that_will_not_fit_gets_more_room(predicted):
    never = [0.0] * 6
    canvas, _ = reread(Reread(Survival(8)), predicted, [1, 2, *[MASK] * 4], never, OLD)
    # Terms 3 to 6 are sure to be text, then 1/4 ends in slot 7 and the rest in slot 8.
    assert canvas.horizon.tolist() == [8]
    assert canvas.answer_ids(0) == [1, 2, *[MASK] * 6]
    slow, hazard = reread(Reread(Survival(8), increment=1), predicted, [1, 2, *[MASK] * 4], never, OLD)
    assert slow.horizon.tolist() == [7]
    assert hazard == pytest.approx([0] * 6 + [0.25, 1])


def test_without_shrinking_it_only_grows(predicted):
    policy = Reread(Survival(8), shrink=False)
    for chances, slots in ((HALF, 6), ([0.0] * 6, 8)):
        canvas, _ = reread(policy, predicted, [1, 2, *[MASK] * 4], chances, OLD)
        assert canvas.horizon.tolist() == [slots]


@pytest.mark.parametrize(
    ("estimate", "left"),
    [
        (Mean(), 2),
        (Quantile(0.9), 4),
        (Scaled(2.0), 4),  # twice what is left, not twice the whole
        (Scaled(1.0, margin=1), 3),
        (Scaled(0.01), 1),  # never nothing: the answer has not ended
    ],
)
def test_the_estimate_is_asked_about_what_is_left(estimate, left, predicted):
    policy = Reread(Survival(8, estimate))
    canvas, _ = reread(policy, predicted, [1, 2, *[MASK] * 4], HALF, OLD)
    assert canvas.horizon.tolist() == [2 + left]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([1, MASK, *[MASK] * 4], "the block is not complete"),
        ([1, END, *[MASK] * 4], "the answer has ended"),
        ([1, 2, 3, 4, 5, 1], "nothing is left to read"),
    ],
)
def test_a_row_is_left_alone_where(answer, why, predicted):
    canvas, hazard = reread(Reread(Survival(8)), predicted, answer, HALF, OLD)
    assert canvas.answer_ids(0) == answer, why
    assert hazard == pytest.approx(OLD), why


def test_a_word_behind_the_block_is_not_cut(predicted):
    canvas, _ = reread(Reread(Survival(8)), predicted, [1, 2, MASK, MASK, 3, MASK], HALF, OLD)
    assert canvas.answer_ids(0)[:5] == [1, 2, MASK, MASK, 3]
    assert canvas.horizon.item() >= 6


def test_a_row_that_outgrew_the_limit_is_left_alone(predicted):
    canvas, _ = reread(Reread(Survival(4)), predicted, [1, 2, *[MASK] * 4], HALF, [0.5] * 4)
    assert canvas.horizon.tolist() == [6]


@pytest.mark.parametrize(
    ("reading", "hazards"),
    [
        # Ended by: 0.1, 0.1, 0.4, 0.4. Boundaries: they add up to 1 in the last slot.
        (EndedBy(), [0, 0, 0.1, 0, 0.3 / 0.9, 0]),
        (Boundary(), [0, 0, 0.1, 0.1 / 0.9, 0.4 / 0.8, 1]),
    ],
    ids=str,
)
def test_every_reading_starts_behind_the_words(reading, hazards, predicted):
    chances = [0.9, 0.9, 0.1, 0.1, 0.4, 0.4]
    policy = Reread(Survival(8, interpretation=reading))
    _, hazard = reread(policy, predicted, [1, 2, *[MASK] * 4], chances, OLD)
    assert hazard == pytest.approx([*hazards, *OLD[6:]])


def test_what_auto_picked_for_the_probe_holds_for_the_rest(predicted):
    padded = EndSignal.from_probabilities(torch.linspace(0, 1, 40)[None])
    lengths = Auto()(padded)
    assert lengths.interpretation == (EndedBy(),)
    prediction = predicted(ending(0.0, 0.0, 0.01, 0.02, 0.03, 0.04))
    assert Auto()(EndSignal.from_probabilities(torch.tensor([[0.0, 0.0, 0.01, 0.02, 0.03, 0.04]]))).interpretation != (
        EndedBy(),
    )
    heard = RereadState.initial(lengths)
    policy = Reread(Survival(40, interpretation=Auto()))
    _, state = revised(policy, prediction, [1, 2, *[MASK] * 4], heard)
    ended = [0, 0, 0.01, 0.02, 0.03, 0.04]
    assert LengthDistribution(state.hazard).cumulative[0, :6].tolist() == pytest.approx(ended)
    assert state.candidate.tolist() == heard.candidate.tolist()


# While decoding

IDS = TokenIds(mask=6, end=7, pad=7, vocab_size=8)


def changing_its_mind(first, later, after=4):
    """Ends at slot `first` by the prompt, at `later` once `after` words are written."""

    def forward(tokens):
        rows = []
        for row in tokens:
            answer = row[2:]
            words = int(((answer != IDS.mask) & (answer != IDS.end)).sum())
            slot = later if words >= after else first
            place = torch.arange(len(row)) - 2
            ended = slot(place) if callable(slot) else (place >= slot).float()
            sure = torch.linspace(19, 17, len(row))
            logits = torch.zeros(len(row), 8)
            logits[:, 1], logits[:, IDS.end] = (sure + (1 - ended).log(), sure + ended.log())
            rows.append(logits.clamp(min=0))
        return torch.stack(rows)

    return Adapter(forward, IDS)


def horizons(model, length, block=4):
    recipe = Recipe(length=length, block=block)
    return [int(step.canvas.horizon[0]) for step in lastword.decode(model, [[1, 1]], recipe)]


ROOMY = Survival(32, Quantile(0.5), interpretation=EndedBy())


def test_an_answer_that_turns_out_longer_is_given_room_while_it_is_written():
    model = changing_its_mind(first=8, later=20)
    plain, again = (
        lastword.generate(model, [1, 1], length=length, unmask=lastword.MostConfident(), block=4)
        for length in (ROOMY, Reread(ROOMY, increment=4))
    )
    assert (plain.finish, len(plain.tokens), plain.horizon) == (Finish.TRUNCATED, 9, 9)
    assert (again.finish, len(again.tokens), again.horizon) == (Finish.ENDED, 20, 9)
    assert again.probe_cost.forward_passes == 1
    assert again.cost.forward_passes == len(again.canvas)  # one token a pass and no pass beyond


def test_an_answer_that_turns_out_shorter_gives_its_room_back():
    model = changing_its_mind(first=24, later=10)
    assert horizons(model, Reread(ROOMY))[-1] == 11
    assert horizons(model, Reread(ROOMY, shrink=False))[-1] == 25
    plain, again = (lastword.generate(model, [1, 1], length=length, block=4) for length in (ROOMY, Reread(ROOMY)))
    assert plain.tokens == again.tokens
    assert again.cost.tokens_computed < plain.cost.tokens_computed / 2


def test_a_model_that_was_sure_and_changed_its_mind_is_believed():
    """The probe's curve is spent in slot 12; what lies behind it is for new readings to say."""

    def spread(first, last):
        return lambda slot: ((slot + 2 - first) / (last + 1 - first)).clamp(0, 1)

    model = changing_its_mind(spread(9, 12), spread(25, 28))
    for estimate in (Mean(), Quantile(0.9), Cheapest(300.0)):
        again = Reread(Survival(48, estimate, interpretation=EndedBy()), increment=16)
        answer = lastword.generate(model, [1, 1], length=again, block=4)
        assert answer.horizon <= 12
        assert (answer.finish, len(answer.tokens)) == (Finish.ENDED, 26), estimate


def test_behind_a_spent_curve_the_estimate_says_how_far(predicted):
    spent = [0.0] * 4 + [0.5, 1.0, *[1.0] * 10]
    open_end, two_words = [0.0] * 5 + [0.4], [1, 2, *[MASK] * 4]
    for estimate, slots in ((Mean(), 9), (Quantile(0.9), 10), (Quantile(0.3), 6)):
        policy = Reread(Survival(16, estimate), increment=4)
        canvas, hazard = reread(policy, predicted, two_words, open_end, spent)
        assert canvas.horizon.tolist() == [slots], estimate  # 4 + 0.6 * 4 are left on average
        assert hazard[5:11] == pytest.approx([0.4, 0, 0, 0, 1, 1])


def test_a_word_in_the_last_slot_there_may_be_leaves_nothing_to_ask(predicted):
    answer = [1, 2, MASK, MASK, MASK, 5]
    canvas, _ = reread(Reread(Survival(6)), predicted, answer, [0.0] * 6, [0.1] * 6)
    assert canvas.answer_ids(0) == answer


def test_growth_when_full_is_insurance_around_it():
    """An estimate that asks for too little fills its canvas; then nothing is left to read."""
    model = changing_its_mind(first=20, later=20)
    short = Reread(Survival(32, Scaled(0.3), interpretation=EndedBy()))
    assert lastword.generate(model, [1, 1], length=short, block=4).finish is Finish.TRUNCATED
    insured = StopAtEnd(GrowWhenFull(short, increment=4, limit=32))
    answer = lastword.generate(model, [1, 1], length=insured, block=4)
    assert (answer.finish, len(answer.tokens)) == (Finish.ENDED, 20)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", [lastword.PrefixCache(), lastword.FeatureCache(1, 1)], ids=str)
def test_under_a_cache_that_reads_ahead_it_acts_as_well(family, cache, request):
    model = request.getfixturevalue(family)

    def sizes(cache):
        recipe = Recipe(length=Reread(Survival(24)), cache=cache, block=4)
        steps = list(lastword.decode(model, [[5, 42, 17]], recipe))
        assert steps[-1].probe_cost.forward_passes.tolist() == [1]
        return [int(step.canvas.horizon) for step in steps]

    assert len(set(sizes(cache))) > 1
    if cache == lastword.FeatureCache(1, 1):  # refreshed in every pass, a cache is exact
        assert sizes(cache) == sizes(lastword.NoCache())


def test_it_reads_again_for_survival_alone(in_plain_python):
    """A bound on whole answers does not hold for the rest of one, so Calibrated is refused too."""
    for code in ("lastword.Reread(lastword.Fixed(8))", "lastword.Reread(lastword.Calibrated())"):
        assert in_plain_python([code])[code] == "SettingError"
    with pytest.raises(SettingError, match=r"Reread\(increment=0\)"):
        Reread(increment=0)


def test_its_text_form():
    from lastword.recipe.text import parse_part

    text = "stop-at-end:(grow-when-full:(reread:(survival:256,interpretation=auto),increment=32),limit=256)"
    inner = Reread(Survival(256, interpretation=Auto()), increment=32)
    assert parse_part("length", text) == StopAtEnd(GrowWhenFull(inner, limit=256))
