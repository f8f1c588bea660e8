"""Prompts and canvases that exceed the context length: one rule for records and tables."""

from dataclasses import replace

import pytest

import lastword
from lastword.calibration import Ratios
from lastword.engines.local import MIN_SLOTS, fit_context
from lastword.errors import SettingError
from lastword.evaluate import Journal
from lastword.evaluate.journal import read_records
from lastword.evaluate.run import evaluate
from lastword.evaluate.tables import tables, too_long_summary
from lastword.evaluate.tasks import Sample
from lastword.models.toy import Toy
from lastword.models.weights import model_key
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import PARTS
from lastword.recipe.resolve import resolve
from lastword.survival.distribution import Mean
from lastword.survival.interpretation import Hazard
from tests.evaluate.oracle import AT_ONCE, oracle

POSITIONS = 1000


class YesTask:
    """A task with prompts of given lengths; the correct answer is yes."""

    name, group, version = "echo", "echo", "1"

    def __init__(self, *lengths):
        self.prompts = [chr(97 + at) * length for at, length in enumerate(lengths)]

    def samples(self, limit=None):
        return [Sample("echo", at, prompt) for at, prompt in enumerate(self.prompts[:limit])]

    def score(self, samples, texts):
        return [float(text in ("yes", "")) for text in texts]  # even no text would be right


def run(task, path, recipe=AT_ONCE, rows=8):
    model = oracle(dict.fromkeys(task.prompts, "yes"), positions=POSITIONS)
    return evaluate(model, "oracle", [task], recipe, Journal(path), max_batch_size=rows)


def test_a_canvas_is_shortened_or_the_sample_scores_zero(tmp_path):
    recipe = Recipe(length=lastword.Fixed(500), unmask=lastword.AboveThreshold(0.5))
    task = YesTask(500, 501, POSITIONS - MIN_SLOTS, POSITIONS - MIN_SLOTS + 1, POSITIONS + 5, 10)
    records = run(task, tmp_path / "a.jsonl", recipe)
    assert [r.horizon for r in records] == [500, 499, MIN_SLOTS, 0, 0, 500]
    assert [r.shortened for r in records] == [False, True, True, False, False, False]
    assert [r.finish for r in records] == ["ended"] * 3 + ["too_long"] * 2 + ["ended"]
    assert [r.score for r in records] == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert [r.prompt_tokens for r in records][3:5] == [POSITIONS - MIN_SLOTS + 1, POSITIONS + 5]
    assert {r.recipe for r in records} == {recipe}  # one line of a table
    shown = markdown(read_records(tmp_path / "a.jsonl"))
    assert "| fixed:500, threshold:0.5 | 6 |" in shown
    assert "Of 6 records, 2 score 0 without decoding" in shown
    assert "and 2 have a canvas that was shortened" in shown


def markdown(records):
    return "\n\n".join(table.markdown() for table in tables(records))


def test_samples_that_do_not_fit_are_recorded_once(tmp_path):
    task = YesTask(10, POSITIONS)
    first = run(task, tmp_path / "a.jsonl")
    assert run(task, tmp_path / "a.jsonl") == first
    assert len(read_records(tmp_path / "a.jsonl")) == 2


def test_a_table_without_decoded_samples(tmp_path):
    shown = markdown(run(YesTask(POSITIONS), tmp_path / "a.jsonl"))
    assert "| 1 | 0 | 0.000 ± 0.000 |  | 1.00 |  |  |  |" in shown
    fits = Recipe(length=lastword.Fixed(8), unmask=lastword.AboveThreshold(0.5))
    assert too_long_summary(run(YesTask(10), tmp_path / "b.jsonl", fits)) == ""


# What a calibrated plan is looked up in, as an evaluation does first.
LENGTHS = lastword.Calibration(
    model_key="w", limit=256, interpretation=Hazard(), estimate=Mean(), families={"all": Ratios((1.0,) * 50)}
)


@pytest.mark.parametrize("name", PARTS["length"])
def test_every_policy_respects_the_available_slots(name):
    """On a model with 80 available slots, a policy plans at most 80."""
    model = Toy()
    model.max_seq_len, model.default_max_new_tokens = 83, 256
    model.calibration = replace(LENGTHS, model_key=model_key(model))
    block = {"block": 16} if name in ("stop-at-end", "grow-when-full", "reread") else {}
    bound = {"max_passes": 256} if name == "budget" else {}
    length = PARTS["length"][name](**bound)
    recipe = Recipe(length=length, unmask=lastword.AboveThreshold(0.1), **block)
    resolved = resolve(recipe, model)
    shorter = fit_context(resolved, model, 3)
    assert shorter != resolved
    assert fit_context(shorter, model, 3) == shorter
    assert lastword.generate(model, "abc", recipe=shorter).horizon <= 80


@pytest.mark.parametrize("made_in_chat", [True, False])
def test_an_evaluation_uses_the_prompts_of_the_calibration(made_in_chat, tmp_path):
    model, task = Toy(), YesTask(3)
    said = {"chat": made_in_chat}
    model.calibration = replace(LENGTHS, model_key=model_key(model), made_with=said)
    recipe = Recipe(length=lastword.Calibrated(), unmask=lastword.AboveThreshold(0.1))
    journal = Journal(tmp_path / "a.jsonl")
    if not made_in_chat:
        assert len(evaluate(model, "toy", [task], recipe, journal)) == 1
    with pytest.raises(SettingError, match="the model was calibrated on prompts given as"):
        evaluate(model, "toy", [task], recipe, journal, chat=not made_in_chat)
    if not made_in_chat:
        # A task may lay its own conversation out, whatever the model is asked by default.
        task.samples = lambda limit=None: [Sample("echo", 0, "a", turns=(("user", "a"),))]
        with pytest.raises(SettingError, match="is chat messages"):
            evaluate(model, "toy", [task], recipe, journal)


def test_the_harness_shortens_a_calibrated_plan():
    from lm_eval.api.instance import Instance

    from lastword.evaluate.harness_model import LastwordLM

    model = Toy()
    model.max_seq_len, model.calibration = 100, replace(LENGTHS, model_key=model_key(model))
    lm = LastwordLM(model, Recipe(length=lastword.Calibrated(), unmask=lastword.AboveThreshold(0.1)))
    lm.generate_until([Instance("generate_until", {}, ("abc", {}), 0, ("t", 0, 1))])
    assert lm.log[0]["shortened"]
