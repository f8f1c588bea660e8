"""The expected length of later steps is that of the same decoding, and costs only those steps."""

import json

import pytest

import lastword
from lastword.decode import decode
from lastword.errors import SettingError
from lastword.eval import Journal, drift, tiny_tasks
from lastword.length import Fixed, Survival
from lastword.recipe import Recipe


@pytest.fixture(scope="module")
def model():
    return lastword.load("tiny-llada-base", device="cpu")


def test_it_reads_what_decoding_says_at_each_step(model, tmp_path):
    tasks = tiny_tasks(["algebra"])
    found = drift(
        model, "m", tasks, Journal(tmp_path / "d.jsonl"), length=Survival(24), steps=(1, 3), limit=2, rows=2
    )  # fmt: skip
    prompts = [model.tokenizer.encode(s.prompt) for s in tasks[0].samples(2)]
    steps = list(decode(model, prompts, Recipe(length=Fixed(24))))
    for index in (0, 1, 3):
        means = Survival(24).read(steps[index].prediction).mean.tolist()
        got = [record["expected"][str(index)] for record in found]
        assert got == pytest.approx(means, abs=0.01)
    assert all(list(record["expected"]) == ["0", "1", "3"] for record in found)


def test_a_second_call_asks_nothing_again(model, tmp_path, monkeypatch):
    given = {"length": Survival(16), "steps": (1,), "limit": 1}
    journal = Journal(tmp_path / "d.jsonl")
    once = drift(model, "m", tiny_tasks(["algebra"]), journal, **given)
    monkeypatch.setattr("lastword.eval.later_steps.decode", lambda *_: pytest.fail("asked again"))
    assert drift(model, "m", tiny_tasks(["algebra"]), journal, **given) == once
    assert len(journal.path.read_text().splitlines()) == 1
    assert json.loads(journal.path.read_text())["kind"] == "drift"


@pytest.mark.parametrize("steps", [(), (0,), (-1,)])
def test_steps_must_be_later_ones(model, tmp_path, steps):
    with pytest.raises(SettingError):
        drift(
            model, "m", tiny_tasks(["algebra"]), Journal(tmp_path / "d.jsonl"), steps=steps, limit=1
        )
