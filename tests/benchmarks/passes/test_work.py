"""Tests of the arithmetic and the memory traffic of forward passes."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.passes.shapes import DREAM_7B, LLADA_8B, TINY, random_model
from benchmarks.passes.work import Work, weight_bytes
from lastword import TokenIds
from lastword.models.native import NativeModel


def test_the_arithmetic_equals_the_count_of_torch():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    tokens, read = torch.zeros(2, 40, dtype=torch.long), torch.arange(10, 40).expand(2, -1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens, read)
    assert Work(80, 80 * 40, 60).flops(TINY.shape) == counter.get_total_flops()


@pytest.mark.parametrize(("known", "billions"), [(LLADA_8B, 8.0), (DREAM_7B, 7.6)])
def test_the_real_shapes_have_the_known_number_of_parameters(known, billions):
    with torch.device("meta"):
        model = NativeModel(known.architecture, known.shape, random_ids(known.shape))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.05)


def random_ids(shape):
    return TokenIds(mask=1, end=0, pad=0, vocab_size=shape.vocab_size)


def test_traffic_is_weights_once_per_pass_and_keys_once_per_row():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    embedding = 512 * 64
    parameters = sum(p.numel() for p in model.parameters())
    assert weight_bytes(model) == 4 * (parameters - embedding)
    keys = 2 * 2 * 64 * 4  # keys and values, layers, width, bytes
    work = Work(tokens=32, attention_pairs=32 * 100, tokens_read=32)
    assert work.traffic(model) == weight_bytes(model) + 100 * keys
    assert work.traffic(model, passes=3, row_passes=5) == 3 * weight_bytes(model) + 500 * keys
