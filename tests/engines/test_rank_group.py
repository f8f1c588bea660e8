"""One model in two actors of a Ray cluster on this machine."""

from __future__ import annotations

import os
import signal

import pytest

import lastword
from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine
from lastword.engines.rank_group import RankGroup
from lastword.errors import CheckpointError, RankError, SettingError
from lastword.recipe.recipe import Recipe
from tests.models.rank_jobs import ROOT

QUESTIONS = {f"q{number}": GenerationRequest(list(range(5, 8 + number)), seed=number) for number in range(6)}
RECIPE = Recipe.coerce("fast").with_choices(length="default:32")


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs the package ray")
    shared = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        ray.init("local", num_cpus=2, num_gpus=0, object_store_memory=100 * 2**20, **shared)
        yield ray
        ray.shutdown()


def rank_and_process(model):
    return model.ranks.rank, os.getpid()


@pytest.mark.full
def test_a_group_of_actors_answers_as_this_process(cluster, golden):
    """And where one of them dies the other is not waited for."""
    folder = str(golden / "llada-tiny")
    alone = LocalEngine(lastword.load(folder, device="cpu")).generate(QUESTIONS, RECIPE, max_batch_size=2)
    wanted = {reply.key: (reply.text, reply.details["length"]) for some in alone for reply in some}
    group = RankGroup(folder, parallel=2, device="cpu", timeout=60)
    try:
        said = [reply for some in group.generate(QUESTIONS, RECIPE, max_batch_size=2) for reply in some]
        assert {reply.key: (reply.text, reply.details["length"]) for reply in said} == wanted
        assert len(said) == len(QUESTIONS)
        rank, process = group.call(rank_and_process)
        assert rank == 0
        with pytest.raises(SettingError, match="NoCache"):
            group.call(refuses)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(RankError, match="has ended"):
            next(group.generate(QUESTIONS, RECIPE, max_batch_size=2))
        with pytest.raises(RankError, match="has ended; make another one"):
            group.call(rank_and_process)
    finally:
        group.close()


def refuses(model):
    raise SettingError("give NoCache()")


@pytest.mark.full
def test_what_cannot_be_started_is_refused_and_gives_its_place_back(cluster, golden):
    with pytest.raises(CheckpointError, match="there is no folder"):
        RankGroup(str(golden / "not-there"), parallel=2, device="cpu", timeout=60)
    with pytest.raises(SettingError, match=r"found no place within 1 s; the cluster has .*'CPU': 2"):
        RankGroup(str(golden / "llada-tiny"), parallel=3, device="cpu", timeout=1)
    with pytest.raises(SettingError, match=r"the cluster has .*'GPU': 0"):
        RankGroup(str(golden / "llada-tiny"), parallel=2, device="cuda", timeout=1)


def test_without_a_cluster_it_is_said_what_to_do():
    ray = pytest.importorskip("ray", reason="needs the package ray")
    if ray.is_initialized():
        pytest.skip("a cluster of other tests is connected")
    with pytest.raises(SettingError, match=r"call ray.init\(address=\.\.\.\) first"):
        RankGroup("tiny-llada-base", parallel=2)
