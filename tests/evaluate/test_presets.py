"""Presets say what the paper says, run, and give way to options."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import SettingError, TaskError
from lastword.evaluate.presets import PRESETS, Setting, preset
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length

BASE = ["bbh", "gsm8k", "minerva_math", "humaneval", "mbpp"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_uses_the_papers_canvas_and_loads(name, hub):
    chosen = preset(name)
    for setting in chosen.settings:
        assert setting.recipe.length == Survival(1024)
        names = tuple(task.replace("bbh", "bbh_cot_fewshot_navigate") for task in setting.tasks)
        tasks = replace(setting, tasks=names).load(chat=bool(chosen.chat))
        assert all(bool(task.samples(1)[0].turns) == chosen.chat for task in tasks)
    assert chosen.model.split("/")[1].lower().startswith(name.split("/")[1].split("-")[0])


def command(*arguments):
    """Run the command line: exit code, standard output, standard error."""
    done = CliRunner().invoke(app, ["eval", *map(str, arguments)], env={"COLUMNS": "100"})
    return done.exit_code, done.stdout, done.stderr


def settings_of(name):
    return {task: setting for setting in preset(name).settings for task in setting.tasks}


def test_the_base_presets_are_the_papers_table():
    llada, dream = settings_of("paper/llada-base"), settings_of("paper/dream-base")
    assert list(llada) == list(dream) == BASE
    assert {setting.shots for setting in (*llada.values(), *dream.values())} == {None}
    assert {setting.recipe for setting in llada.values()} == {Recipe.named("paper").with_choices(length=Survival(1024))}
    draws = {task: setting.recipe.sampling for task, setting in dream.items()}
    assert [draws[task].temperature for task in BASE] == [0.0, 0.0, 0.0, 0.2, 0.2]
    assert {(draw.top_p, draw.score) for draw in draws.values()} == {(0.95, "draw")}
    assert [task for task in BASE if dream[task].dream_code] == ["humaneval"]
    assert (preset("paper/dream-base").bos, preset("paper/llada-base").bos) == (True, False)
    unmask = json.loads(dream["bbh"].recipe.to_json())["unmask"]
    assert (unmask["name"], unmask["schedule"]["name"]) == ("lowest-entropy", "timesteps")


def test_options_override_a_preset():
    chosen = (
        preset("paper/dream-base")
        .only(("mbpp", "gsm8k"))
        .with_recipes(lambda recipe: recipe.with_choices(length="fixed:512"))
    )
    assert [setting.tasks for setting in chosen.settings] == [("gsm8k",), ("mbpp",)]
    assert {setting.recipe.length for setting in chosen.settings} == {Fixed(512)}
    assert chosen.settings[1].recipe.sampling.temperature == 0.2
    with pytest.raises(TaskError, match="no setting for 'algebra'; it has bbh, gsm8k"):
        preset("paper/dream-base").only(("algebra",))
    with pytest.raises(SettingError, match="unknown preset 'paper/gpt'; known: paper/llada-base"):
        preset("paper/gpt")


def test_show_says_what_would_run():
    code, out, _ = command(
        "--preset", "paper/dream-base", "--tasks", "humaneval", "--length", "fixed:512",
        "--show",
    )  # fmt: skip
    lines = out.splitlines()
    assert code == 0
    assert lines[1] == "model: Dream-org/Dream-v0-Base-7B, plain prompts, begun with bos"
    assert lines[2].startswith("humaneval: the task's own shots, code read as Dream's authors do")
    assert Recipe.from_json(lines[3]).length == Fixed(512)
    assert len(lines) == 4
    code, out, _ = command("--tasks", "gsm8k", "--shots", "2", "--chat", "--show")
    assert "tiny-llada-base, chat template" in out
    assert "gsm8k: 2 shots" in out
    assert Recipe.from_json(out.splitlines()[-1]).length == default_length()


@pytest.mark.full
def test_the_command_runs_a_preset_and_resumes_it(hub, tmp_path):
    arguments = [
        "--preset", "paper/llada-base", "--tasks", "humaneval,mbpp", "--limit", "1",
        "--length", "fixed:8", "--model", "tiny-llada-base", "--device", "cpu", "--out", tmp_path,
    ]  # fmt: skip
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "humaneval (lm-eval 0.4.13, task version 1.0, 0 shots, pass@1,create_test; plain)\n" in out
    assert "| tiny-llada-base | fixed, 8 slots | 1 | 8 | 0.000" in out
    records = [json.loads(line) for line in (tmp_path / "tiny-llada-base.test.jsonl").read_text().splitlines()]
    assert [record["group"] for record in records] == ["humaneval", "mbpp"]
    assert command(*arguments)[1] == out


def test_drift_takes_a_preset_but_for_its_blocks(hub, tmp_path):
    done = CliRunner().invoke(app, [
        "drift", "--preset", "paper/dream-base", "--tasks", "humaneval", "--limit", "1", "--steps", "2",
        "--slots", "16", "--model", "tiny-dream-base", "--device", "cpu", "--out", str(tmp_path),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    (record,) = map(json.loads, (tmp_path / "tiny-dream-base.drift.jsonl").read_text().splitlines())
    assert (record["layout"], record["recipe"]["block"]) == ("bos", None)
    assert record["recipe"]["unmask"]["name"] == "lowest-entropy"
    assert record["recipe"]["sampling"]["temperature"] == 0.2
    assert list(record["expected"]) == ["0", "2"]


def test_the_command_refuses_what_it_cannot_run_before_a_model_is_loaded():
    for arguments, why in (
        (["--tasks", ""], "--tasks has an empty value"),
        (["--tasks", "algebra,"], "contains an empty name"),
        (["--tasks", "gsm8k", "--split", "validation"], "only embedded tasks have splits other than test"),
        (["--preset", "paper/gpt"], "unknown preset"),
    ):
        code, _, err = command("--model", "no/such/model", *arguments)
        assert code == 1
        assert why in err


def test_few_shot_examples_of_an_embedded_task_are_rejected():
    with pytest.raises(TaskError, match=r"algebra is an embedded task, .* no few-shot examples .*leave out shots"):
        Setting(("algebra",), Recipe(), shots=3).load()
