"""Comparisons of the rules at equality: who may write when a number is exactly the bar."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import lastword

WORD, VOCABULARY = 0, 8


def filled(rule, logits):
    """The slots each pass fills, for a model that says `logits` [T, 8] about a slot whatever it sees."""
    ids = lastword.TokenIds(mask=6, end=7, pad=7, vocab_size=VOCABULARY)

    def forward(tokens):
        prompt = torch.zeros(tokens.shape[1] - len(logits), VOCABULARY)
        return torch.cat((prompt, logits.float())).expand(len(tokens), -1, -1)

    recipe = lastword.Recipe(length=lastword.Fixed(len(logits)), unmask=rule)
    steps = list(lastword.decode(lastword.Adapter(forward, ids), [[1, 2]], recipe))
    canvases = [[ids.mask] * len(logits), *(step.canvas.answer_ids(0) for step in steps)]
    assert canvases[-1] == [WORD] * len(logits)
    return [[slot for slot, (a, b) in enumerate(zip(before, after)) if a != b] for before, after in pairwise(canvases)]


def tied(slots):
    """Logits that give two words one half each, exactly, in any precision."""
    logits = torch.full((slots, VOCABULARY), -torch.inf)
    logits[:, WORD : WORD + 2] = 0
    return logits


@pytest.mark.parametrize(
    ("rule", "stricter"),
    [
        (lastword.AboveThreshold(0.5), lastword.AboveThreshold(0.5001)),
        (
            lastword.AboveThreshold(0.5, max_tokens_per_step=3.0),
            lastword.AboveThreshold(0.5001, max_tokens_per_step=3.0),
        ),
        # The n-th likeliest must be 1 - factor / (n + 1) likely: one half, for the second of 1.5.
        (lastword.Factor(1.5), lastword.Factor(1.4999)),
    ],
    ids=str,
)
def test_a_candidate_exactly_as_likely_as_asked_is_written(rule, stricter):
    together = 2 if isinstance(rule, lastword.Factor) else 3
    assert filled(rule, tied(3))[0] == list(range(together))
    assert filled(stricter, tied(3)) == [[0], [1], [2]]


def test_slow_fast_writes_together_what_is_exactly_sure():
    """One note is enough here, and it says 4: every later pass is a fast one."""
    fast = lastword.SlowFast(high_confidence=0.5, min_confidence=0.4, stability_window=1)
    assert filled(fast, tied(4)) == [[0], [1, 2, 3]]
    surer = lastword.SlowFast(high_confidence=0.5001, min_confidence=0.4, stability_window=1)
    assert filled(surer, tied(4)) == [[0], [1], [2], [3]]


def test_slow_fast_notes_what_is_exactly_within_reach():
    """In reach, slot 3 is the end; out of it slot 0 is, and slots 1 to 3 wait for other cycles."""
    reaching = lastword.SlowFast(high_confidence=0.5, min_confidence=0.5, stability_window=1)
    assert filled(reaching, tied(4)) == [[0], [1, 2, 3]]
    short = lastword.SlowFast(high_confidence=0.5, min_confidence=0.5001, stability_window=1)
    assert filled(short, tied(4)) == [[0], [1], [2], [3]]


PAIR = [0.85, 0.85]  # a slow pass fills one of them, a fast pass both


def slow_fast(**choices):
    return lastword.SlowFast(high_confidence=0.8, min_confidence=0.88, **choices)


def test_slow_fast_settles_when_its_notes_spread_by_less_than_asked(sure):
    """Notes 6 and 4 deviate by 1 from their mean: not less than 1, so a third slow pass follows."""
    logits = sure(*PAIR, 0.2, 0.9, 0.2, 0.95)
    assert filled(slow_fast(stability_std=1.0), logits)[:3] == [[5], [3], [0]]
    assert filled(slow_fast(stability_std=1.01), logits)[:3] == [[5], [3], [0, 1]]


def test_slow_fast_takes_the_notes_for_all_there_are(sure):
    """Notes 6 and 5 deviate by 0.5; as a sample of two they would by 0.71."""
    logits = sure(*PAIR, 0.2, 0.2, 0.9, 0.95)
    assert filled(slow_fast(stability_std=0.6), logits)[:3] == [[5], [4], [0, 1]]
    assert filled(slow_fast(stability_std=0.5), logits)[:3] == [[5], [4], [0]]


def test_slow_fast_settles_on_one_note_where_one_is_asked_for(sure):
    logits = sure(*PAIR, 0.2, 0.2, 0.2, 0.95)
    assert filled(slow_fast(stability_window=1, stability_std=0.01), logits)[:2] == [[5], [0, 1]]
    assert filled(slow_fast(stability_window=1, stability_std=0.0), logits)[:2] == [[5], [0]]


def test_slow_fast_never_settles_on_fewer_notes_than_asked_for(sure):
    """However far they may spread."""
    logits = sure(*PAIR, 0.2, 0.89, 0.9, 0.95)
    assert filled(slow_fast(stability_window=3, stability_std=9.0), logits)[:4] == [[5], [4], [3], [0, 1]]
    assert filled(slow_fast(stability_window=2, stability_std=9.0), logits)[:3] == [[5], [4], [0, 1, 3]]
