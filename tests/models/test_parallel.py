"""One model in two ranks: the same tokens as in one process, on half of the weights each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import lastword
from lastword.errors import CheckpointError, SettingError
from lastword.models.parallel import check_shape, parameter_bytes, share
from tests.models import rank_jobs
from tests.models.rank_jobs import ROOT, in_ranks

FAMILIES = ["llada", "dream"]


def same_as_alone(folder, *jobs):
    """Let two ranks and this process do each of the jobs: all three must say the same."""
    every = in_ranks(folder, *jobs)
    for job in jobs:
        name, _, given = job.partition(":")
        alone = getattr(rank_jobs, name)(1, *given.split(","))
        for said in every:
            assert said[job] == alone, job


@pytest.mark.full
def test_two_ranks_write_what_was_recorded(tmp_path):
    """The quick one of these tests: both families, no cache and the dual cache."""
    jobs = {
        "golden:llada,g15_batch": 1,
        "golden:dream,d04": 1,
        "golden_caches:llada,f13_dual": 1,
        "golden_caches:dream,e08_dual": 1,
        "heads_kept:dream-tiny": [6, 1, 16],
        "other_prompts:llada-tiny": None,
    }
    for said in in_ranks(tmp_path, *jobs):
        refusal = said.pop("other_prompts:llada-tiny")
        assert refusal.startswith("RankError: the 2 ranks were asked for different passes")
        assert said == {job: count for job, count in jobs.items() if count is not None}


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_write_every_recorded_run(tmp_path, family):
    first, second = in_ranks(tmp_path, f"golden:{family}", f"golden_caches:{family}")
    assert first == second
    assert all(isinstance(count, int) and count >= 6 for count in first.values()), first


@pytest.mark.full
@pytest.mark.parametrize("name", ["tiny-llada-instruct", "tiny-dream-instruct"])
def test_two_ranks_answer_as_one_process(tmp_path, name):
    caches = [f"cached:{name},{cache}" for cache in ("none", "prefix", "dual", "feature")]
    same_as_alone(
        tmp_path,
        *caches,
        f"columns_chosen:{name}",
        f"in_slots:{name}",
        f"drawn:{name}",
        f"expected:{name}",
        f"key_of:{name}",
    )


@pytest.mark.full
def test_ranks_that_are_asked_for_different_things_say_so(tmp_path, golden):
    jobs = {
        "other_prompts:llada-tiny": "RankError: the 2 ranks were asked for different passes",
        "other_seeds:llada-tiny": "RankError: the 2 ranks were asked for different passes",
        "other_models": "RankError: the 2 ranks loaded different models",
        f"missing_here:{golden / 'dream-tiny'}": "CheckpointError: ",
        "refused:packs": "SettingError: packs=True was set on a model that was loaded with parallel",
        "refused:fp8": "SettingError: load(weights='fp8', parallel=2) was given",
        "refused:ranks": "SettingError: load(parallel=3) was given in a run of 2 ranks",
        "refused:device": "SettingError: load(device='cpu:0', parallel=2) was given",
    }
    every = in_ranks(tmp_path, *jobs)
    for said in every:
        for job, words in jobs.items():
            assert said[job].startswith(words), said[job]
    told = [said[f"missing_here:{golden / 'dream-tiny'}"] for said in every]
    assert told[0].startswith("CheckpointError: rank 1 cannot load its part of the model: there is")


@pytest.mark.full
@pytest.mark.parametrize("tied", [False, True])
def test_a_vocabulary_need_not_be_even_and_a_head_may_be_the_embedding(tmp_path, checkpoint, tied):
    folder = checkpoint("llada-tiny")
    tensors = load_file(folder / "model.safetensors")
    embedding, head = (f"model.transformer.{name}.weight" for name in ("wte", "ff_out"))
    for name in (embedding, head):
        tensors[name] = torch.cat((tensors[name], tensors[name][5:6]))
    if tied:
        tensors[head] = tensors[embedding].clone()  # stored all the same
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    odd = config["embedding_size"] + 1
    changed = {"embedding_size": odd, "vocab_size": odd, "weight_tying": tied}
    (folder / "config.json").write_text(json.dumps(config | changed))
    (tmp_path / "meeting").mkdir()
    same_as_alone(tmp_path / "meeting", f"cached:{folder},dual", f"expected:{folder}", f"key_of:{folder}")


@pytest.mark.full
def test_a_rank_holds_half_of_the_weights_and_all_of_the_norms(tmp_path):
    names = ["tiny-llada-base", "dream-tiny"]
    every = in_ranks(tmp_path, *(f"bytes_of:{name}" for name in names))
    for name in names:
        alone = rank_jobs.model(1, name)
        whole, norms = parameter_bytes(alone), parameter_bytes(norms_of(alone))
        assert 0 < norms < whole / 100
        for said in every:
            assert said[f"bytes_of:{name}"] == (whole - norms) // 2 + norms


def norms_of(model):
    named = model.named_modules()
    return torch.nn.ModuleList(module for name, module in named if name.endswith("norm"))


@pytest.mark.full
def test_a_rank_that_ends_is_missed(tmp_path):
    """The other one does not wait for ever: it says who is gone."""
    first, second = in_ranks(tmp_path, "leaves:llada-tiny")
    assert second["leaves:llada-tiny"] == "left"
    assert first["leaves:llada-tiny"].startswith("RankError: rank 0 cannot reach the other ranks")


@pytest.mark.full
def test_the_command_line_under_torchrun(tmp_path):
    """Two ranks meet by the variables torchrun sets; one of them prints."""
    words = ["-m", "lastword", "generate", "5 6 7", "--ids", "--json", "--length", "fixed:12"]
    words += ["--device", "cpu", "--cache", "dual", "--block", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def said(*command):
        run = [sys.executable, *command]
        done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    (alone,), (together,) = said(*words), said(*launch, *words, "--parallel", "2")
    assert len(alone["tokens"]) > 3
    assert together["tokens"] == alone["tokens"]


def test_without_ranks_it_is_said_how_to_start_them(golden, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SettingError, match="torchrun --nproc-per-node 2"):
        lastword.load(golden / "llada-tiny", device="cpu", parallel=2)


@pytest.mark.parametrize("wrong", [0, -1, True, 2**20])
def test_a_number_of_ranks_that_is_none_is_refused(golden, wrong):
    with pytest.raises(SettingError, match="parallel"):
        lastword.load(golden / "llada-tiny", parallel=wrong)


def test_the_toy_is_in_one_process():
    with pytest.raises(SettingError, match="leave parallel out"):
        lastword.load("toy", parallel=2)


@pytest.mark.parametrize(("count", "words"), [(3, "4 heads"), (4, "2 key-value heads"), (8, "4 heads")])
def test_heads_that_cannot_be_shared_are_refused(dream, count, words):
    with pytest.raises(CheckpointError, match=f"has {words}, which {count} ranks cannot share"):
        check_shape(dream.network.shape, count, "dream-tiny")
    check_shape(dream.network.shape, 2, "dream-tiny")


@pytest.mark.parametrize("size", [1, 2, 5, 8, 9])
def test_shares_are_the_chunks_that_torch_splits_into(size):
    whole = torch.arange(size)
    parts = [whole[share(size, rank, 3)] for rank in range(3)]
    assert torch.equal(torch.cat(parts), whole)
    assert all(torch.equal(part, chunk) for part, chunk in zip(parts, whole.chunk(3)))


def test_passes_of_several_ranks_are_not_captured(monkeypatch, llada):
    """Where a lone model's shapes would be fixed for graphs, theirs are not."""
    monkeypatch.setattr(
        "lastword.decoding.loop.supports_static_shapes", lambda *_, **__: pytest.fail("asked")
    )
    silent = SimpleNamespace(rank=0, check_same=lambda *_: None, summed=lambda own: own)
    monkeypatch.setattr(llada, "ranks", silent)
    assert not llada.is_packed
    assert lastword.generate(llada, [5, 6, 7], length="fixed:4").tokens
