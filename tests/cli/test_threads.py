"""The number of torch threads: 1 for small models, one per physical core for others, unless the user sets it."""

import os

import pytest

from lastword.cli import errors


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ({"model": "toy", "engine": "local"}, "1"),
        ({"model": None, "preset": None}, "1"),
        ({"model": ["toy", "tiny-dream-base"]}, "1"),
        ({"model": ["toy", "my/folder"]}, "64"),
        ({"model": "GSAI-ML/LLaDA-8B-Base"}, "64"),
        ({"model": None, "preset": "paper/llada-base"}, "64"),
        ({"models": "toy"}, "64"),  # `lastword bench` measures the machine
        ({"model": "toy", "engine": "ray"}, ""),  # a cluster chooses
        ({"model": "toy", "engine": "ray", "threads": 3}, ""),
        ({"model": "my/folder", "threads": 3}, "3"),
        ({"model": "toy", "engine": "local", "threads": 3}, "3"),
        ({"model": "my/folder", "engine": "processes", "threads": 3}, "64"),  # the workers have 3
    ],
)
def test_the_options_say_how_large_the_model_is(monkeypatch, options, threads):
    for name in errors.THREAD_VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(errors, "available_cores", lambda: 64)
    errors.choose_threads(options)
    assert os.environ["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("name", errors.THREAD_VARIABLES)
def test_the_environment_overrides_the_choice(monkeypatch, name):
    for variable in errors.THREAD_VARIABLES:
        monkeypatch.setenv(variable, "7" if variable == name else "")
    errors.choose_threads({"model": "toy"})
    assert os.environ[name] == "7"
    assert "1" not in map(os.environ.get, errors.THREAD_VARIABLES)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("150000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 8), ("junk", 8), ("1 0", 8), (None, 8)],
)
def test_the_quota_of_a_container_counts(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert errors.available_cores(tmp_path / "cpu.max", tmp_path) == cores


def test_the_option_overrides_the_environment(monkeypatch):
    for variable in errors.THREAD_VARIABLES:
        monkeypatch.setenv(variable, "7")
    errors.choose_threads({"model": "toy", "threads": 2})
    assert [os.environ[variable] for variable in errors.THREAD_VARIABLES] == ["2", "2"]


def test_the_two_threads_of_a_core_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    for cpu, siblings in {0: "0,4", 1: "1,5", 2: "2,6", 5: "1,5"}.items():
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert errors.available_cores(tmp_path / "cpu.max", tmp_path) == 3
