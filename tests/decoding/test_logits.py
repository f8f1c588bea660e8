"""Logits, a few columns at a time."""

import torch

from lastword.decoding import prediction as logits
from lastword.decoding.prediction import Logits


def test_many_columns_are_made_by_even_numbers_and_few_as_they_come(monkeypatch):
    made = Logits.of(torch.arange(1200.0).view(1, 600, 2))
    for numbers, sizes in ((600, [256, 256, 88]), (20, [10] * 60), (2000, [600])):
        monkeypatch.setattr(logits, "MAX_CHUNK_NUMBERS", numbers)
        parts = [*made.chunks()]
        assert [len(part) for part in parts] == sizes
        assert torch.equal(torch.cat(parts), made.whole[0])
