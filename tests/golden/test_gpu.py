"""On a GPU the same tokens come out: run with `pytest -m gpu` where there is one."""

import pytest
import torch

import lastword
from tests.golden.cases import FOLDER, TURN_ENDS, cases, model
from tests.golden.test_decoding import dream_recipe, llada_recipe

DETERMINISTIC = [
    case for family in ("llada", "dream") for case in cases(family, "generate") if not case.facts.get("hook")
]


@pytest.fixture(scope="module")
def on_gpu():
    return {
        family: lastword.load(FOLDER / f"{family}-tiny", device="cuda", dtype="float32", turn_ends=TURN_ENDS[family])
        for family in ("llada", "dream")
    }


@pytest.mark.gpu
@pytest.mark.parametrize("case", DETERMINISTIC, ids=lambda case: case.name)
def test_gpu_and_cpu_write_the_same(case, on_gpu):
    recipe = llada_recipe(case) if case.family == "llada" else dream_recipe(case, keep_idle=True)
    answers = {
        device: lastword.generate(where, case.prompts, recipe=recipe, exceed_max_seq_len=True)
        for device, where in (("cpu", model(case.family)), ("cuda", on_gpu[case.family]))
    }
    for ours, theirs in zip(answers["cuda"], answers["cpu"]):
        assert ours.canvas == theirs.canvas


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_sampling_on_a_gpu_repeats_by_seed_and_row(family, on_gpu):
    settings = {"length": "fixed:12", "sampling": lastword.Sampling(temperature=0.9), "seed": 3}
    together = lastword.generate(on_gpu[family], [[5, 6], [7, 8, 9]], **settings)
    alone = lastword.generate(on_gpu[family], [7, 8, 9], **{**settings, "seed": 4})
    assert together[1].canvas == alone.canvas


@pytest.mark.gpu
def test_auto_takes_the_gpu_and_the_stored_dtype():
    loaded = lastword.load(FOLDER / "llada-tiny")
    assert loaded.device.type == "cuda"
    assert next(loaded.parameters()).dtype == torch.float32
