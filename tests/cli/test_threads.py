"""Threads: few for small models, no more than cores for others, and whatever a user says."""

import os

import pytest

from lastword.cli import errors
from lastword.cli.errors import _choose_threads


@pytest.mark.parametrize(
    ("models", "cores", "chosen"),
    [
        (["tiny-llada-base"], 64, errors.FEW),
        ([None], 64, errors.FEW),
        (["toy", "tiny-dream-base"], 1, 1),
        (["GSAI-ML/LLaDA-8B-Base"], 64, 64),
        (["toy", "my/folder"], 6, 6),
    ],
)
def test_as_many_as_a_model_has_use_for(monkeypatch, models, cores, chosen):
    monkeypatch.setattr(errors, "cores", lambda: cores)
    environment = {}
    errors.limit_threads(models, environment)
    assert environment == {"OMP_NUM_THREADS": str(chosen)}


@pytest.mark.parametrize("name", errors.SAID)
def test_what_the_environment_says_stands(name):
    environment = {name: "7"}
    errors.limit_threads(["toy"], environment)
    assert environment == {name: "7"}


@pytest.mark.parametrize(
    ("written", "most"),
    [("150000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", None), ("junk", None), ("1 0", None)],
)  # fmt: skip
def test_a_container_s_share_counts(tmp_path, monkeypatch, written, most):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(written)
    assert errors.cores(tmp_path / "cpu.max") == (most or 8)
    assert errors.cores(tmp_path / "nowhere") == 8


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"model": "toy", "engine": "local"}, str(errors.FEW)),
        ({"model": None, "preset": None}, str(errors.FEW)),
        ({"model": ["toy", "my/folder"]}, "64"),
        ({"model": None, "preset": "paper/llada-base"}, "64"),
        ({"models": "toy"}, "64"),  # `lastword bench` measures the machine
        ({"model": "toy", "engine": "ray"}, None),
    ],
)
def test_a_command_s_options_say_how_large_its_models_are(monkeypatch, options, chosen):
    for name in errors.SAID:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(errors, "cores", lambda: 64)
    _choose_threads(options)
    assert (os.environ["OMP_NUM_THREADS"] or None) == chosen


def test_help_says_so():
    assert f"{errors.FEW} for the embedded models" in errors.THREADS
    assert "OMP_NUM_THREADS" in errors.THREADS
