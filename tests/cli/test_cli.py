from __future__ import annotations

import inspect
import io
import json
import re
import shlex
import sys

import pytest

from lastword.cli import COMMANDS
from lastword.evaluate.records import _parse_recipe
from lastword.policies.length.fixed import Fixed
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT_RECIPE, PARTS
from lastword.recipe.text import parse_part


def examples():
    """The commands that help texts show, without those of eval, tables and demo, which take minutes."""
    lines = []
    for command in ("predict", "generate", "calibrate", "drift"):
        text = inspect.getdoc(COMMANDS[command]).replace("\\\n", " ")
        lines += [line.strip() for line in text.splitlines() if re.match(r" +(lastword|echo) ", line)]
    needs = ("GSAI-ML/", "my/checkpoint", "--preset")  # what does not come with the package
    return [line for line in lines if not any(word in line for word in needs)]


@pytest.mark.full
def test_the_examples_of_help_texts_run(command, tmp_path, monkeypatch):
    from lastword.tasks import load_frozen

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LASTWORD_HOME", str(tmp_path / "home"))
    prompts = [e.prompt.replace("\n", " ") for e in load_frozen("test", "algebra")[:9]]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    assert len(examples()) == 10
    for line in examples():
        echo, _, words = line.rpartition(" | ")
        code, _, err = command(*shlex.split(words)[1:], stdin=" ".join(shlex.split(echo)[1:]))
        assert code == 0, f"{line}: {err}"


def test_version(command):
    import lastword

    assert command("--version") == (0, f"lastword {lastword.__version__}\n", "")


# predict


PREDICT = ("predict", "abc", "-m", "toy", "--interpretation", "hazard", "--slots")


def test_predict_draws_a_curve_and_prints_the_length(command):
    code, out, err = command(*PREDICT, 64)
    assert (code, err) == (0, "")
    for words in ("█", "expected length 19.2, so a canvas of 20 (of 64)", "90% within 45", "beyond 64: 3.8%"):
        assert words in out
    assert "interpreted as hazard; without a chat template\n" in out
    assert "50% within 14   90% not within 16   95% not within 16   beyond 16: 44.0%" in command(*PREDICT, 16)[1]


def test_predict_json_is_one_object(command):
    data = json.loads(command(*PREDICT, 64, "--json")[1])
    assert data["expected_length"] == pytest.approx((1 - 0.95**64) / 0.05)
    assert (data["horizon"], data["quantiles"]["0.9"], len(data["hazard"])) == (20, 45, 64)
    assert data["tail"] == pytest.approx(0.95**64)
    data = json.loads(command("predict", "abc", "-m", "toy", "--slots", "64", "--json")[1])
    assert data["explanation"].startswith("first boundary: ends add up to 3.20")
    assert data["expected_length"] < 11  # 20 slots of 0.05 each, not a product


def test_predict_writes_a_picture(command, tmp_path):
    path = tmp_path / "curve.png"
    code, out, _ = command(*PREDICT, 16, "--plot", path)
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "wrote" in out


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_may_come_from_standard_input(command, arguments):
    code, out, _ = command("predict", *arguments, "-m", "toy", "--slots", "8", "--json", stdin="abc\n")
    assert code == 0
    assert json.loads(out)["slots"] == 8


# generate


@pytest.fixture
def generate(command):
    """Run `lastword generate` on the toy model and return the JSON that it prints."""

    def run(*words, prompt="abc", model="toy"):
        code, out, err = command("generate", prompt, "-m", model, *words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_generate_prints_the_answer_and_its_costs_apart(command):
    code, out, err = command("generate", "abc", "-m", "toy", "--length", "fixed:4")
    assert (code, out) == (0, "defg\n")
    assert "4 tokens, 4 slots planned, 4 used; 4 forward passes, 28 tokens computed, plus 0 by the probe" in err


@pytest.mark.parametrize(
    ("length", "slots"),
    [(("--length", "survival:16"), 16), (("--length", "default:16"), 16), (("--length", "default"), 64), ((), 64)],
)
def test_the_length_sizes_the_probe(generate, length, slots):
    answer = generate(*length)
    assert answer["text"].startswith("defg")
    assert answer["probe_cost"]["tokens_computed"] == 3 + slots


def test_a_checkpoint_without_a_tokenizer_takes_and_gives_ids(command, generate, golden):
    model = golden / "llada-tiny"
    words = command("generate", "5, 42 17", "--ids", "-m", model, "--length", "fixed:4")[1].split()
    assert len(words) <= 4
    assert all(word.isdigit() for word in words)
    cache = ("--cache", "feature:25,response_interval=5,share=0.25")
    cost = generate("--ids", "--length", "fixed:8", *cache, prompt="5, 42 17", model=model)["cost"]
    # Three layers; passes 0 and 5 refresh the answer, 0 the prompt; else 2 of 8 columns are chosen.
    columns = [11, *[-(-(11 + 2 * 2) // 3)] * 4, -(-(11 + 2 * 8) // 3), *[-(-(11 + 2 * 2) // 3)] * 2]
    assert (cost["forward_passes"], cost["tokens_computed"]) == (8, sum(columns))


def test_options_set_the_recipe(generate):
    words = ("--length", "fixed:6", "--block", "2", "--unmask", "at-random", "--temperature", "5", "--seed")
    one, same, other = (generate(*words, seed)["text"] for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    "choice",
    [
        ("--commit", "prophet:margin,early=0.5,answer_start=4"),
        ("--commit", "stable-margin:start=2.0,end=0.1"),
        ("--unmask", "slow-fast:0.9,reach=0.3,explore=6,as_released=true"),
        ("--unmask", "most-confident:cosine:4.0"),
    ],
    ids=" ".join,
)
def test_parts_by_their_text(generate, choice):
    answer = generate("--length", "fixed:6", *choice)
    assert len(answer["text"]) <= 6
    assert 1 <= answer["cost"]["forward_passes"] <= 6


def test_a_recipe_has_a_name_or_a_file_and_options_override_it(generate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, slots in (("fast", 3), ("mine", 2), ("recipe.json", 5)):
        (tmp_path / name).write_text(Recipe.named("fixed").with_choices(length=Fixed(slots)).to_json())
    four = ("--length", "fixed:4")
    for words, label in (
        (("fast", *four), "fixed:4, threshold:0.97"),
        (("fast", *four, "--unmask", "threshold"), "fixed:4, threshold"),
        (("careful", *four), "fixed:4"),
        (("./fast",), "fixed:3"),  # a file with the name of a recipe
        (("mine",), "fixed:2"),
        (("recipe.json", *four), "fixed:4"),
    ):
        assert generate("--recipe", *words)["recipe"] == label


def test_evaluation_takes_a_recipe_by_its_name(command):
    for words, name in (((), DEFAULT_RECIPE), (("--recipe", "paper"), "paper")):
        code, out, err = command("eval", *words, "--show")
        assert code == 0, err
        assert Recipe.named(name).to_json() in out
    code, out, err = command("eval", "--preset", "paper/llada-base", "--recipe", "fast", "--show")
    assert (code, out.count("0.97")) == (0, 1), err


def test_on_a_terminal_denoising_and_the_limits_of_a_tiny_model_are_shown(command, monkeypatch):
    words = ("generate", "What is 6 x 7?", "--length", "fixed:3")
    assert "lastword models" not in command(*words)[2]
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured output for a terminal
    code, out, err = command(*words, "--live")
    assert code == 0
    assert "masks left" in out
    assert "tiny-llada-base has 5M parameters" in err


def test_recipes_lists_every_part(command):
    from lastword.recipe.registry import PARTS, RECIPES, SHORTHANDS

    code, out, _ = command("recipes")
    assert (code, out.count("The default.")) == (0, 1)
    for name, recipe in RECIPES.items():
        assert f"- `{name}`: {recipe.description}" in out
    for parts in PARTS.values():
        for name, part in parts.items():
            assert f"- `{name}`: " in out
            assert f"Cost: {part.cost_summary}. Source: {part.source}." in out
    assert "Settings: `length=survival, increment=32, limit=null`" in out
    for shorthands in SHORTHANDS.values():
        assert all(f"- `{name}`: " in out for name in shorthands)


def test_recipes_shows_a_recipe_with_its_parts(command):
    code, out, err = command("recipes", "fast")
    assert (code, err) == (0, "")
    recipe = Recipe.named("fast")
    rows = dict(re.findall(r"^\| (\w+) \| (.+?) \|", out, re.MULTILINE))
    assert rows["unmask"] == "threshold:0.97"
    assert rows["block"] == "32"  # which the length policy needs
    assert {"length", "unmask", "commit", "cache", "sampling", "block"} <= set(rows)
    assert "`--recipe fast`" in out
    assert "(length)" not in out
    assert parse_part("length", rows["length"]) == recipe.length


def test_recipes_shows_a_part_with_its_settings_cost_and_source(command):
    code, out, err = command("recipes", "threshold")
    assert (code, err) == (0, "")
    assert out.startswith("**threshold** (unmask): ")
    for line in (inspect.getdoc(AboveThreshold) or "").splitlines():
        assert line in out
    assert "Settings: `threshold=0.9, max_tokens_per_step=null`." in out
    assert f"Cost: {AboveThreshold.cost_summary}. Source: {AboveThreshold.source}." in out
    assert ">>>" not in out


def test_recipes_shows_a_recipe_and_a_part_of_the_same_name(command):
    _, out, _ = command("recipes", "fixed")
    assert out.startswith("**fixed**: ")
    assert "\n\n**fixed** (length): " in out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fsat", "did you mean 'fast'?"),
        ("thresold", "did you mean 'threshold'?"),
        ("xyz", "`lastword recipes` lists all"),
    ],
)
def test_recipes_names_the_recipe_that_was_meant(command, name, hint):
    code, out, err = command("recipes", name)
    assert (code, out) == (1, "")
    assert err == f"lastword: there is no recipe or part called {name!r}; {hint}\n"


# modules with parts of the user


MY_RULE = """
from dataclasses import dataclass
from typing import ClassVar
import lastword
from lastword.policies.unmask.rule import MostConfident, UnmaskRule

@lastword.register
@dataclass(frozen=True)
class MyRule(MostConfident):
    \"\"\"Fill tokens as I like.\"\"\"
    name: ClassVar[str] = "my-rule"
"""


@pytest.fixture
def my_parts(tmp_path, monkeypatch, names_restored):
    """A module in the current folder that registers an unmask rule; what it changes is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "my_parts.py").write_text(MY_RULE)
    yield "my_parts"
    sys.modules.pop("my_parts", None)


def test_import_registers_parts_for_generate(command, my_parts):
    words = ("generate", "abc", "-m", "toy", "--length", "fixed:4", "--unmask", "my-rule", "--json")
    code, _, err = command(*words)
    assert (code, "there is no unmask called 'my-rule'" in err) == (1, True)
    code, out, err = command(*words, "--import", my_parts)
    assert (code, err) == (0, "")
    assert json.loads(out)["recipe"] == "fixed:4, my-rule"
    assert "**my-rule** (unmask): Fill tokens as I like." in command("recipes", "my-rule", "--import", my_parts)[1]


def test_import_registers_the_parts_of_records_for_tables(command, my_parts, tmp_path):
    words = ("eval", "--tasks", "algebra", "--limit", "1", "--length", "fixed:2", "--out", tmp_path / "out")
    code, _, err = command(*words, "--unmask", "my-rule", "--import", my_parts)
    assert code == 0, err
    assert f"lastword tables --records {tmp_path / 'out'} --import {my_parts}" in err
    shown = ("tables", "--records", tmp_path / "out")
    registered = sys.modules.pop(my_parts)
    PARTS["unmask"].pop("my-rule")
    _parse_recipe.cache_clear()  # as in a new process
    code, _, err = command(*shown)
    assert (code, "my-rule" in err, "--import MODULE" in err) == (1, True, True)
    code, out, err = command(*shown, "--import", my_parts)
    assert code == 0, err
    assert "fixed:2, my-rule" in out
    assert sys.modules[my_parts] is not registered


@pytest.mark.parametrize(
    ("name", "why"), [("my_prats", "No module named 'my_prats'"), ("broken", "No module named 'nix'")]
)
def test_a_module_that_cannot_be_imported_is_named(command, my_parts, tmp_path, name, why):
    (tmp_path / "broken.py").write_text("import nix\n")
    for words in (("generate", "abc", "-m", "no/such/model"), ("tables", "--records", "nowhere")):
        code, out, err = command(*words, "--import", my_parts, "--import", name)
        assert (code, out) == (1, "")
        assert f"--import {name} was given, and the module cannot be imported ({why}" in err


# the chat template


@pytest.mark.parametrize(
    ("words", "said", "chat"),
    [
        (("What is 3 + 4?",), "with the chat template (--no-chat: without)", True),
        (("What is 3 + 4?", "--chat"), "with the chat template (--no-chat: without)", True),
        (("What is 3 + 4?", "--no-chat"), "without a chat template", False),
        (("5 6 7", "--ids"), "from token ids", None),
    ],
)
def test_the_output_says_whether_the_chat_template_was_used(command, words, said, chat):
    model = ("-m", "tiny-llada-instruct", "--device", "cpu")
    short = ("--length", "fixed:2")
    assert f"; {said}. " in command("generate", *words, *model, *short)[2]
    assert f"; {said}\n" in command("predict", *words, *model, "--slots", 8)[1]
    for command_words in (("generate", *words, *short), ("predict", *words, "--slots", 8)):
        assert json.loads(command(*command_words, *model, "--json")[1])["chat"] is chat


def test_generate_caps_and_stops_an_answer(generate):
    words = ("--length", "fixed:9", "--block", "1")
    assert generate(*words, "--max-new-tokens", "3")["text"] == "def"
    stopped = generate(*words, "--stop", "zz", "--stop", "gh")
    assert (stopped["text"], stopped["finish"], stopped["stop_reason"]) == ("def", "stopped", "gh")
    assert stopped["cost"]["forward_passes"] == 5


FASTEST = ("--unmask", "threshold:0.9", "--cache", "dual", "--commit", "prophet")


@pytest.mark.parametrize("model", ["tiny-llada-base", pytest.param("tiny-dream-base", marks=pytest.mark.full)])
def test_every_axis_may_be_chosen_at_once(generate, model):
    for block in ((), ("--block", "8")):
        words = ("--length", "daedal:32,limit=64", *FASTEST, *block)
        answer = generate(*words, prompt="Calculate 3 + 4.", model=model)
        assert 32 <= answer["horizon"] <= 64
        assert answer["probe_cost"]["forward_passes"] > 0


@pytest.mark.parametrize(
    ("refused", "reason", "advice", "taken"),
    [
        (
            ["--unmask", "slow-fast", "--cache", "dual"],
            "SlowFast leaves columns out",
            "--cache none",
            ["--unmask", "slow-fast", "--cache", "none"],
        ),
        (
            ["--length", "daedal:limit=2000", *FASTEST],
            "horizon",
            "lower the length limit to 1014",
            ["--length", "daedal:8,limit=24", *FASTEST],
        ),
        (
            ["--length", "grow-when-full:daedal"],
            "GrowWhenFull was put around Daedal",
            "use Daedal alone",
            ["--length", "daedal:8,limit=24"],
        ),
        (
            ["--length", "daedal", "--commit", "prophet:answer_start=4"],
            "Prophet was given slots at fixed indices",
            "answer_start=-5",
            ["--length", "daedal:8,limit=24", "--commit", "prophet:answer_start=-5"],
        ),
        (
            ["--length", "survival-at-step:3", "--cache", "prefix", "--block", "8"],
            "SurvivalAtStep was given with PrefixCache",
            "step 0",
            ["--length", "survival-at-step:0,length=survival:16", "--cache", "prefix", "--block", "8"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_parts_that_do_not_go_together_are_refused_with_advice(command, refused, reason, advice, taken):
    ask = ("generate", "Calculate 3 + 4.", "-m", "tiny-llada-base")
    code, _, err = command(*ask, *refused)
    assert code != 0
    said = " ".join(err.split())
    assert reason in said
    assert advice in said
    code, _, err = command(*ask, "--length", "fixed:12", *taken)
    assert code == 0, err


def test_demo_compares_the_two_canvases(command, golden, tmp_path):
    path = tmp_path / "demo.png"
    code, out, _ = command("demo", "-m", "toy", "-m", str(golden / "dream-tiny"), "--plot", str(path))
    assert code == 0
    assert path.exists()
    assert out.count("predicted canvas") == 2
    assert "1.00" in out


@pytest.mark.slow
def test_demo_checks_the_answers_of_an_embedded_model(command):
    code, out, _ = command("demo", "-m", "tiny-dream-instruct", "-f", "complete_function", "--pace", "8")
    assert code == 0
    assert out.count(" of 1 ") == 2
    assert '"""Return' in out
    assert "8 tokens per forward pass" in out


def without_sandbox(monkeypatch):
    def failure(level):
        return "" if level.value == "none" else "missing"

    monkeypatch.setattr("lastword.sandbox.runner.level_failure", failure)


@pytest.mark.full
@pytest.mark.slow
def test_demo_checks_code_where_there_is_no_sandbox(command, monkeypatch):
    without_sandbox(monkeypatch)
    monkeypatch.setenv("LASTWORD_UNSAFE_CODE", "0")
    family = ("-f", "complete_function", "--pace", "8")
    code, out, _ = command("demo", "-m", "tiny-dream-instruct", *family)
    assert code == 0
    assert out.count(" of 1 ") == 2


def test_eval_runs_code_without_a_sandbox_when_told_to(command, monkeypatch, tmp_path):
    without_sandbox(monkeypatch)
    monkeypatch.setenv("LASTWORD_UNSAFE_CODE", "0")
    options = ("--tasks", "write_function", "--length", "fixed:16", "--limit", "1")
    for more, level in ((), "plain"), (("--unsafe-code",), "none"):
        out = tmp_path / level
        code, printed, err = command("eval", *options, *more, "--out", str(out))
        assert code == 0, err
        assert "lastword: " not in printed  # tables alone, for whoever pipes them
        assert f"1 records in {out / 'tiny-llada-base.test.jsonl'}; " in err
        assert err.endswith(f"; compare them: lastword tables --records {out}\n")
        (record,) = map(json.loads, (out / "tiny-llada-base.test.jsonl").read_text().splitlines())
        assert record["sandbox"]["level"] == level


def test_demo_on_a_terminal_shows_both_canvases_at_once(golden):
    from rich.console import Console

    from lastword.cli.showcase import showcase

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    showcase("toy", console)
    shown = console.file.getvalue()
    assert "fixed · 64 slots" in shown
    assert "pass 64 · 0 masks left" in shown
    assert "predicted · " in shown


def test_an_evaluation_without_a_fixed_canvas_says_how_to_measure_one(command, tmp_path):
    words = ("--tasks", "algebra", "--limit", "1", "--length", "survival:16", "--block", "8", "--out", str(tmp_path))
    code, _, err = command("eval", *words)
    assert code == 0, err
    advice = "to compare with a fixed canvas, repeat the command with --length fixed --block 8, then run"
    assert err.endswith(
        f"1 records in {tmp_path}/tiny-llada-base.test.jsonl; {advice} lastword tables --records {tmp_path}\n"
    )


def test_an_interrupted_evaluation_says_how_to_resume(command, monkeypatch, tmp_path):
    from lastword.engines.local import LocalEngine

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "generate", interrupted)
    code, _, err = command("eval", "--tasks", "algebra", "--limit", "1", "--out", str(tmp_path))
    assert code == 130
    assert "repeat the command to resume" in err


def test_weights_of_a_server_are_its_own(command, tmp_path):
    code, _, err = command(
        *("eval", "--tasks", "algebra", "--limit", "1", "--out", tmp_path, "--quantization", "fp8"),
        *("--engine", "openai", "--base-url", "http://127.0.0.1:1/v1"),
    )
    assert code == 1
    assert "--quantization fp8 was given with --engine openai" in err


def test_fp8_weights_answer(command):
    words = ("generate", "Calculate 3 + 4.", "--length", "fixed:8", "--quantization", "fp8", "--json")
    code, out, _ = command(*words, "-m", "tiny-llada-base", "--calibration", "none")
    assert code == 0
    assert json.loads(out)["finish"]
    for name, prompt in (("generate", ["abc"]), ("predict", ["abc"]), ("chat", [])):
        code, _, err = command(name, *prompt, "--quantization", "int3")
        assert code == 1
        assert "int3" in err
        assert "fp8" in err
