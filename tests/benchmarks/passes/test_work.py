"""The arithmetic of a pass is what torch counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.passes.shapes import DREAM_7B, LLADA_8B, TINY, random_model
from benchmarks.passes.work import Work, weight_bytes
from lastword.models.native import NativeModel


def test_the_arithmetic_is_what_torch_counts():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    tokens, read = torch.zeros(2, 40, dtype=torch.long), torch.arange(10, 40).expand(2, -1)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        model(tokens, read)
    assert Work(80, 80 * 40, 60).flops(TINY.shape) == counted.get_total_flops()


@pytest.mark.parametrize(("known", "billions"), [(LLADA_8B, 8.0), (DREAM_7B, 7.6)])
def test_the_real_shapes_have_the_parameters_they_are_named_for(known, billions):
    with torch.device("meta"):
        model = NativeModel(known.architecture, known.shape, random_ids(known.shape))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.05)


def random_ids(shape):
    from lastword import TokenIds

    return TokenIds(mask=1, end=0, pad=0, vocab_size=shape.vocab_size)


def test_traffic_is_weights_once_a_pass_and_keys_once_a_row():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    embedding = 512 * 64
    every = sum(p.numel() for p in model.parameters())
    assert weight_bytes(model) == 4 * (every - embedding)
    keys = 2 * 2 * 64 * 4  # keys and values, layers, width, bytes
    a_pass = Work(columns=32, squares=32 * 100, read=32)
    assert a_pass.traffic(model) == weight_bytes(model) + 100 * keys
    assert a_pass.traffic(model, passes=3, row_passes=5) == 3 * weight_bytes(model) + 500 * keys
