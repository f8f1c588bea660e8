from __future__ import annotations

import pytest
from tokenizers import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The recipe's tokenizer, trained on a smaller sample to save time."""
    pytest.importorskip("reasoning_gym")
    from training.tokenizer import LLADA, train

    return train(LLADA, sample=400)
