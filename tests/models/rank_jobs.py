"""What tests let several ranks do: this file is the program of each rank, and starts them.

A rank's answer is what the job returns, as JSON, or the error it ended with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent.parent
SECONDS = 240  # that a group of ranks may take


def in_ranks(folder: Path, *jobs: str, count: int = 2) -> list[dict[str, Any]]:
    """What every rank says of each job; `folder` is an empty one they meet in."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.models.rank_jobs", str(folder), str(count)]
    ranks = [
        subprocess.Popen([*program, str(rank), *jobs], cwd=ROOT, env=environment) for rank in range(count)
    ]
    try:
        for rank in ranks:
            rank.wait(SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def one_rank(folder: Path, count: int, rank: int, jobs: list[str]) -> None:
    import torch.distributed as dist

    import lastword

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meet'}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
    )
    said: dict[str, Any] = {}
    for job in jobs:
        name, _, given = job.partition(":")
        try:
            said[job] = globals()[name](count, *given.split(",")) if given else globals()[name](count)
        except lastword.LastwordError as wrong:
            said[job] = f"{type(wrong).__name__}: {wrong}"
    (folder / f"{rank}.json").write_text(json.dumps(said))


@cache
def model(parallel: int, name: str, **settings: Any) -> Any:
    import lastword
    from tests.golden.cases import FOLDER

    folder = FOLDER / name if (FOLDER / name).is_dir() else name
    return lastword.load(folder, device="cpu", parallel=parallel, **settings)


def bytes_of(parallel: int, name: str) -> int:
    from lastword.models.parallel import parameter_bytes

    return parameter_bytes(model(parallel, name))


def key_of(parallel: int, name: str) -> str:
    from lastword.models.weights import model_key

    return model_key(model(parallel, name))


def expected(parallel: int, name: str) -> list[float]:
    """The lengths that a model predicts, to the digits that do not hang on the order of sums."""
    import lastword

    prompts = [[5, 6, 7], [9, 10, 11, 12, 13, 14]]
    lengths = lastword.predict_length(model(parallel, name), prompts, limit=48)
    return [round(mean, 4) for mean in lengths.mean.tolist()]


def answers(parallel: int, name: str, **settings: Any) -> list[list[int]]:
    import lastword

    prompts = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [20], [30, 31, 32, 33]]
    made = lastword.generate(model(parallel, name), prompts, **settings)
    return [answer.tokens for answer in made]


def in_slots(parallel: int, name: str) -> list[list[int]]:
    return answers(parallel, name, slots=2, recipe="fast", length="default:48")


def drawn(parallel: int, name: str) -> list[list[int]]:
    import lastword

    sampling = lastword.Sampling(temperature=1.0, top_p=0.9)
    return answers(parallel, name, seed=[1, 2, 3, 4], sampling=sampling, length="fixed:24")


def cached(parallel: int, name: str, cache: str) -> list[list[int]]:
    return answers(parallel, name, length="fixed:32", cache=cache, block=8)


def columns_chosen(parallel: int, name: str) -> list[Any]:
    """What every layer recomputes where the values of all heads say so."""
    import pytest

    from lastword.models.feature_storage import RowFeatureStorage

    seen, part = [], RowFeatureStorage.part

    def watched(*given: Any) -> Any:
        columns = part(*given)
        seen.append(None if columns is None else columns.tolist())
        return columns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowFeatureStorage, "part", watched)
        answers(parallel, name, length="fixed:16", cache="feature")
    return seen


def heads_kept(parallel: int, name: str) -> list[int]:
    """The shape of a layer's keys after a pass."""
    from lastword.models.storage import KVStorage

    memory, tokens = KVStorage(1, 6), torch.arange(6)[None]
    every = torch.ones(1, 6, dtype=torch.bool)
    part = memory.at(torch.tensor([0]), every)
    model(parallel, name)(tokens, tokens, stale=tokens, memory=part)
    return [*part.store(0, 0, torch.empty(0))[0].shape]


def golden(parallel: int, family: str, only: str = "") -> int:
    """Every token of every pass of the recorded runs, or of one; returns how many runs those are."""
    from tests.golden import test_decoding as recorded
    from tests.golden.cases import TURN_ENDS

    recorded.model = lambda own: model(parallel, f"{own}-tiny", turn_ends=TURN_ENDS[own])
    cases = {
        "llada": recorded.LLADA + recorded.LLADA_SEEDED,
        "dream": recorded.DREAM + recorded.DREAM_SEEDED,
    }[family]
    cases = [case for case in cases if case.name.startswith(only)]
    for case in cases:
        if family == "llada":
            recorded.test_llada_pass_by_pass(case)
        else:
            import pytest

            with pytest.MonkeyPatch.context() as patch:
                recorded.test_dream_pass_by_pass(case, patch)
    return len(cases)


def golden_caches(parallel: int, family: str, only: str = "") -> int:
    """The same for runs with a cache."""
    from tests.golden import test_fast_dllm, test_fast_dllm_dream

    recorded = test_fast_dllm if family == "llada" else test_fast_dllm_dream
    names = {"llada": partial(model, parallel), "dream": lambda _: model(parallel, "dream-tiny")}
    recorded.model = names[family]
    cases = [case for case in recorded.CASES if case["name"].startswith(only)]
    for case in cases:
        recorded.test_pass_by_pass(case)
    return len(cases)


def other_prompts(parallel: int, name: str) -> list[int]:
    """A program that asks each rank for something else."""
    import lastword

    rank = model(parallel, name).ranks.rank
    return lastword.generate(model(parallel, name), [5, 6, 7 + rank], length="fixed:8").tokens


def other_seeds(parallel: int, name: str) -> list[int]:
    import lastword

    own, sampling = model(parallel, name), lastword.Sampling(temperature=1.0)
    made = lastword.generate(own, [5, 6, 7], length="fixed:16", sampling=sampling, seed=own.ranks.rank)
    return made.tokens


def other_models(parallel: int) -> None:
    import torch.distributed as dist

    model.__wrapped__(parallel, ["llada-tiny", "dream-tiny"][dist.get_rank()])


def missing_here(parallel: int, folder: str) -> None:
    """Rank 1 has no such folder."""
    import torch.distributed as dist

    model.__wrapped__(parallel, folder if dist.get_rank() == 0 else f"{folder}-that-is-not-there")


def leaves(parallel: int, name: str) -> str:
    """Rank 1 ends while rank 0 goes on."""
    if (own := model(parallel, name)).ranks.rank == 1:
        return "left"
    own(torch.tensor([[5, 6]]), torch.tensor([[1]]))
    return "went on"


def refused(parallel: int, setting: str) -> None:
    import lastword
    from tests.golden.cases import FOLDER

    if setting == "packs":
        own = model(parallel, "llada-tiny")
        own.packs = True
        try:
            lastword.predict_length(own, [5, 6, 7])
        finally:
            del own.packs
    given = {"fp8": {"weights": "fp8"}, "ranks": {"parallel": 3}, "device": {"device": "cpu:0"}}
    lastword.load(FOLDER / "llada-tiny", **{"device": "cpu", "parallel": parallel, **given[setting]})


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, count, rank, *jobs = sys.argv[1:]
    one_rank(Path(folder), int(count), int(rank), jobs)
