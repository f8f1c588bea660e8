from __future__ import annotations

import inspect
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lastword.cli import COMMANDS, main
from lastword.cli.evaluate import wrote
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT_RECIPE


@pytest.fixture
def lastword(capsys, monkeypatch):
    """Run the command line in this process: exit code, standard output, standard error."""

    def run(*arguments, stdin=None):
        monkeypatch.setattr(sys, "argv", ["lastword", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        monkeypatch.setenv("COLUMNS", "100")
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.mark.parametrize("command", [[], ["predict"], ["generate"], ["recipes"], ["demo"], ["calibrate"]])
def test_help_says_what_a_command_does(lastword, command):
    code, out, _ = lastword(*command, "--help")
    assert code == 0
    assert "Usage: " in out


@pytest.mark.parametrize("command", ["predict", "generate", "demo", "calibrate"])
def test_help_has_examples(lastword, command):
    _, out, _ = lastword(command, "--help")
    assert "Examples:" in out
    assert f"lastword {command}" in out.split("Examples:")[1]


def examples():
    """The commands that help texts show, without those of eval, tables and demo, which take minutes."""
    lines = []
    for command in ("predict", "generate", "calibrate", "drift"):
        text = inspect.getdoc(COMMANDS[command]).replace("\\\n", " ")
        lines += [line.strip() for line in text.splitlines() if re.match(r" +(lastword|echo) ", line)]
    needs = ("GSAI-ML/", "my/checkpoint", "--preset")  # what does not come with the package
    return [line for line in lines if not any(word in line for word in needs)]


@pytest.mark.full
def test_the_examples_of_help_texts_run(tmp_path):
    from lastword.tasks.frozen import load_frozen

    prompts = [e.prompt.replace("\n", " ") for e in load_frozen("test", "algebra")[:9]]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    root = Path(__file__).parent.parent.parent
    assert len(examples()) == 10
    for line in examples():
        script = f'lastword() {{ "{sys.executable}" -m lastword "$@"; }}; {line}'
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr.decode()}"


def test_version(lastword):
    import lastword as package

    assert lastword("--version") == (0, f"lastword {package.__version__}\n", "")


def test_help_does_not_wait_for_torch():
    code = "import sys, lastword.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# predict


def test_predict_draws_a_curve_and_says_the_length(lastword):
    code, out, err = lastword("predict", "abc", "-m", "toy", "--limit", "64", "--reading", "hazard")
    assert code == 0
    assert "█" in out
    assert "expected length 19.2, so a canvas of 20 (of 64)" in out
    assert "90% within 45" in out
    assert "beyond 64: 3.8%" in out
    assert err == ""


def test_predict_json_is_one_object(lastword):
    code, out, _ = lastword("predict", "abc", "-m", "toy", "--limit", "64", "--reading", "hazard", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["expected_length"] == pytest.approx((1 - 0.95**64) / 0.05)
    assert data["horizon"] == 20
    assert data["quantiles"]["0.9"] == 45
    assert data["tail"] == pytest.approx(0.95**64)
    assert len(data["hazard"]) == 64


def test_predict_says_how_it_read_the_signal(lastword):
    code, out, _ = lastword("predict", "abc", "-m", "toy", "--limit", "64", "--reading", "hazard")
    assert (code, "read as hazard\n" in out) == (0, True)
    code, out, _ = lastword("predict", "abc", "-m", "toy", "--limit", "64", "--json")
    data = json.loads(out)
    assert data["explanation"].startswith("first boundary: ends add up to 3.20")
    assert data["expected_length"] < 11  # 20 slots of 0.05 each, not a product


def test_predict_does_not_call_within_what_lies_beyond(lastword):
    code, out, _ = lastword("predict", "abc", "-m", "toy", "--limit", "16", "--reading", "hazard")
    assert code == 0
    assert "50% within 14   90% not within 16   95% not within 16   beyond 16: 44.0%" in out


def test_predict_refuses_a_reading_it_does_not_know(lastword):
    code, _, err = lastword("predict", "abc", "-m", "toy", "--reading", "boundar")
    assert code == 1
    assert "did you mean 'boundary'" in err


def test_predict_writes_a_picture(lastword, tmp_path):
    path = tmp_path / "curve.png"
    code, out, _ = lastword("predict", "abc", "-m", "toy", "--limit", "16", "--plot", str(path))
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "wrote" in out


@pytest.mark.parametrize("target", ["curve.xyz", "no/such/folder/curve.png"])
def test_a_picture_that_cannot_be_written_is_refused_in_one_line(lastword, tmp_path, target):
    code, _, err = lastword("predict", "abc", "-m", "toy", "--limit", "8", "--plot", str(tmp_path / target))
    assert code == 1
    assert err.startswith("lastword: ")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_may_come_from_standard_input(lastword, arguments):
    code, out, _ = lastword("predict", *arguments, "-m", "toy", "--limit", "8", "--json", stdin="abc\n")
    assert code == 0
    assert json.loads(out)["limit"] == 8


# generate


def test_generate_prints_the_answer_and_its_account_apart(lastword):
    code, out, err = lastword("generate", "abc", "-m", "toy", "--length", "fixed:4")
    assert (code, out) == (0, "defg\n")
    assert "4 tokens, 4 slots planned, 4 used; 4 passes and 28 columns" in err


def test_generate_json_is_one_object(lastword):
    code, out, err = lastword("generate", "abc", "-m", "toy", "--length", "survival:16", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["text"].startswith("defg")
    assert data["probe_cost"]["tokens_computed"] == 19


def test_the_default_length_may_be_given_a_limit(lastword):
    for length, slots in (
        (["--length", "default:16"], 16),
        (["--length", "default"], 64),
        ([], 64),
    ):
        code, out, _ = lastword("generate", "abc", "-m", "toy", *length, "--json")
        assert code == 0
        assert json.loads(out)["probe_cost"]["tokens_computed"] == 3 + slots


def test_generate_from_ids_on_a_checkpoint_without_tokenizer(lastword, golden):
    code, out, _ = lastword(
        "generate", "5, 42 17", "--ids", "-m", str(golden / "llada-tiny"), "--length", "fixed:4"
    )
    assert code == 0
    assert len(out.split()) <= 4
    assert all(word.isdigit() for word in out.split())


def test_a_cache_is_chosen_by_name_and_settings(lastword, golden):
    arguments = ["5, 42 17", "--ids", "-m", str(golden / "llada-tiny"), "--length", "fixed:8"]
    cache = "feature:25,response_interval=5,share=0.25"
    code, out, _ = lastword("generate", *arguments, "--cache", cache, "--json")
    cost = json.loads(out)["cost"]
    # Three layers; passes 0 and 5 refresh the answer, 0 the prompt; else 2 of 8 columns are chosen.
    spent = [11, *[-(-(11 + 2 * 2) // 3)] * 4, -(-(11 + 2 * 8) // 3), *[-(-(11 + 2 * 2) // 3)] * 2]
    assert (code, cost["forward_passes"], cost["tokens_computed"]) == (0, 8, sum(spent))


def test_options_set_the_recipe(lastword):
    arguments = ["--length", "fixed:6", "--block", "2", "--unmask", "at-random", "--json"]
    one = lastword("generate", "abc", "-m", "toy", *arguments, "--temperature", "5", "--seed", "1")
    same = lastword("generate", "abc", "-m", "toy", *arguments, "--temperature", "5", "--seed", "1")
    other = lastword("generate", "abc", "-m", "toy", *arguments, "--temperature", "5", "--seed", "2")
    texts = [json.loads(out)["text"] for _, out, _ in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "choice",
    [
        ["--commit", "prophet"],
        ["--commit", "prophet:margin,early=0.5,answer_start=4"],
        ["--commit", "stable-margin:start=2.0,end=0.1"],
        ["--unmask", "slow-fast"],
        ["--unmask", "slow-fast:0.9,reach=0.3,explore=6,as_released=true"],
        ["--unmask", "maskgit:cosine:2.0"],
        ["--unmask", "maskgit:noise=1.5"],
        ["--unmask", "most-confident:cosine:4.0"],
    ],
    ids=" ".join,
)
def test_parts_by_their_text(lastword, choice):
    code, out, err = lastword("generate", "abc", "-m", "toy", "--length", "fixed:6", *choice, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert len(answer["text"]) <= 6
    assert 1 <= answer["cost"]["forward_passes"] <= 6


def test_a_recipe_file_is_used_and_options_override_it(lastword, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(Recipe(length=Fixed(3)).to_json())
    assert lastword("generate", "abc", "-m", "toy", "--recipe", str(path))[1] == "def\n"
    assert lastword("generate", "abc", "-m", "toy", "--recipe", str(path), "--length", "fixed:2")[1] == "de\n"


def test_a_recipe_goes_by_its_name_or_its_file(lastword, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = Recipe.named("fixed")
    (tmp_path / "fast").write_text(plain.with_choices(length=Fixed(3)).to_json())
    (tmp_path / "mine").write_text(plain.with_choices(length=Fixed(2)).to_json())

    def ran(*options):
        code, out, err = lastword("generate", "abc", "-m", "toy", "--json", *options)
        assert code == 0, err
        return json.loads(out)["recipe"]

    four = ("--length", "fixed:4")
    assert ran("--recipe", "fast", *four) == "fixed:4, threshold:0.97"
    assert ran("--recipe", "fast", *four, "--unmask", "threshold") == "fixed:4, threshold"
    assert ran("--recipe", "careful", *four) == "fixed:4"
    assert ran("--recipe", "./fast") == "fixed:3"  # a file of that name goes by its path
    assert ran("--recipe", "mine") == "fixed:2"


def test_evaluation_takes_a_recipe_by_its_name(lastword):
    for given, name in (([], DEFAULT_RECIPE), (["--recipe", "paper"], "paper")):
        code, out, err = lastword("eval", *given, "--show")
        assert code == 0, err
        assert Recipe.named(name).to_json() in out
    code, out, err = lastword("eval", "--preset", "paper/llada-base", "--recipe", "fast", "--show")
    assert (code, out.count("0.97")) == (0, 1), err


def test_live_shows_denoising_and_leaves_the_answer(lastword, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured output for a terminal
    code, out, _ = lastword("generate", "abc", "-m", "toy", "--length", "fixed:4", "--live")
    assert code == 0
    assert out.rstrip().endswith("defg")
    assert "masks left" in out


def test_on_a_terminal_a_tiny_model_says_what_it_knows(lastword, monkeypatch):
    asked = ("generate", "What is 6 x 7?", "--length", "fixed:3")
    assert "lastword models" not in lastword(*asked)[2]
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = lastword(*asked)
    assert code == 0
    assert "tiny-llada-base has 5M parameters" in err
    assert err.endswith("Others: lastword models]\n")


def test_recipes_lists_every_part(lastword):
    from lastword.recipe.registry import PARTS, RECIPES

    code, out, _ = lastword("recipes")
    assert code == 0
    flat = " ".join(out.split())
    for name, (says, _) in RECIPES.items():
        assert f"{name} {says}" in flat
    assert flat.count("The default.") == 1
    for parts in PARTS.values():
        for name, cls in parts.items():
            assert name in flat
            assert f"price: {cls.cost_summary}" in flat
            assert f"source: {cls.source}" in flat
    assert "initial=null, limit=null, expansion_factor=8, eos_window=32" in flat
    assert "length=survival, increment=32, limit=null" in flat
    shorthand = flat.split("default The plan that costs least")[1]
    assert "limit=None short for stop-at-end:(grow-when-full:(survival:interpretation=auto)" in shorthand


FASTEST = ["--unmask", "threshold:0.9", "--cache", "dual", "--commit", "prophet"]


@pytest.mark.parametrize(
    "model", ["tiny-llada-base", pytest.param("tiny-dream-base", marks=pytest.mark.full)]
)
def test_every_axis_may_be_chosen_at_once(lastword, model):
    for more in ([], ["--block", "8"]):
        choice = ["-m", model, "--length", "daedal:32,limit=64", *FASTEST, *more, "--json"]
        code, out, err = lastword("generate", "Calculate 3 + 4.", *choice)
        assert code == 0, err
        answer = json.loads(out)
        assert 32 <= answer["horizon"] <= 64
        assert answer["probe_cost"]["forward_passes"] > 0


def test_what_goes_together_may_still_not_fit_a_small_model(lastword):
    choice = ["-m", "tiny-llada-base", "--length", "daedal:limit=2000", *FASTEST]
    code, _, err = lastword("generate", "Calculate 3 + 4.", *choice)
    assert code != 0
    assert "lower the length limit to 1014" in " ".join(err.split())


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
            [
                "--length",
                "survival-at-step:0,length=survival:16",
                "--cache",
                "prefix",
                "--block",
                "8",
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_parts_that_do_not_go_together_are_refused_with_advice(lastword, refused, reason, advice, taken):
    ask = ("generate", "Calculate 3 + 4.", "-m", "tiny-llada-base")
    code, _, err = lastword(*ask, *refused)
    assert code != 0
    said = " ".join(err.split())
    assert reason in said
    assert advice in said
    code, _, err = lastword(*ask, "--length", "fixed:12", *taken)
    assert code == 0, err


def test_demo_compares_the_two_canvases(lastword, golden, tmp_path):
    path = tmp_path / "demo.png"
    code, out, _ = lastword("demo", "-m", "toy", "-m", str(golden / "dream-tiny"), "--plot", str(path))
    assert code == 0
    assert path.exists()
    assert out.count("predicted canvas") == 2
    assert "1.00" in out


@pytest.mark.slow
def test_demo_checks_the_answers_of_an_embedded_model(lastword):
    code, out, _ = lastword("demo", "-m", "tiny-dream-instruct", "-f", "complete_function", "--pace", "8")
    assert code == 0
    assert out.count(" of 1 ") == 2
    assert '"""Return' in out
    assert "8 tokens a pass" in out


def without_sandbox(monkeypatch):
    def failure(level):
        return "" if level.value == "none" else "missing"

    monkeypatch.setattr("lastword.sandbox.runner.level_failure", failure)


@pytest.mark.full
@pytest.mark.slow
def test_demo_checks_code_where_there_is_no_sandbox(lastword, monkeypatch):
    without_sandbox(monkeypatch)
    monkeypatch.setenv("LASTWORD_UNSAFE_CODE", "0")
    family = ("-f", "complete_function", "--pace", "8")
    code, out, _ = lastword("demo", "-m", "tiny-dream-instruct", *family)
    assert code == 0
    assert out.count(" of 1 ") == 2


def test_eval_runs_code_without_a_sandbox_when_told_to(lastword, monkeypatch, tmp_path):
    without_sandbox(monkeypatch)
    monkeypatch.setenv("LASTWORD_UNSAFE_CODE", "0")
    options = ("--tasks", "write_function", "--length", "fixed:16", "--limit", "1")
    for more, level in ((), "plain"), (("--unsafe-code",), "none"):
        out = tmp_path / level
        code, printed, err = lastword("eval", *options, *more, "--out", str(out))
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


def test_demo_refuses_a_family_it_does_not_have(lastword):
    code, _, err = lastword("demo", "-m", "toy", "-f", "chess")
    assert code != 0
    assert "toy shows toy" in err


def test_records_without_a_fixed_canvas_are_not_sent_to_tables_that_refuse_them(capsys, tmp_path):
    wrote(tmp_path / "a.jsonl", 2, compared=False)
    said = capsys.readouterr().err
    assert "; to compare, the same command with --length fixed, then lastword tables " in said


# Refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", ""], "the prompt is empty"),
        (["generate"], "the prompt is empty"),
        (["generate", "Hello!", "-m", "toy"], "cannot read '!'"),
        (["generate", "abc", "--chat", "-m", "toy"], "no chat template"),
        (["generate", "a b", "--ids", "-m", "toy"], "whole numbers"),
        (["generate", "27", "--ids", "-m", "toy"], "mask token"),
        (["generate", "abc", "--length", "fixed:0", "-m", "toy"], "Fixed"),
        (["generate", "abc", "--length", "survial"], "did you mean 'survival'"),
        (["generate", "abc", "--unmask", "low_confidence"], "did you mean 'most-confident'"),
        (["generate", "abc", "--block", "0"], "block=0"),
        (["generate", "abc", "--temperature", "-1"], "temperature"),
        (["generate", "abc", "--recipe", "no-such.json"], "cannot be read"),
        (["generate", "abc", "--recipe", "fats"], "known: careful, fast, paper, fixed; did you"),
        (["eval", "--recipe", "Paper"], "did you mean 'paper'?"),
        (["generate", "abc", "-m", "no-such-model"], "there is no folder"),
        (["predict", "abc", "--limit", "0"], "limit"),
        (["eval", "--limit", "0", "-m", "no-such-model"], "limit=0"),
        (["eval", "--rows", "0", "-m", "no-such-model"], "rows=0"),
        (["tables", "--records", "SPEED", "--out", "README.md"], "is no folder to write to"),
        (["predict", "abc", "--dtype", "int3", "-m", "GOLDEN"], "dtype 'int3'"),
        (
            ["predict", "1 2", "--ids", "-m", "GOLDEN", "--limit", "95"],
            "exceeds the model's 96 positions",
        ),
        (["predict", "abc", "-m", "GOLDEN"], "without a tokenizer"),
    ],
)
def test_a_refusal_is_one_sentence_on_standard_error_and_exit_code_1(lastword, golden, arguments, words):
    root = Path(__file__).parent.parent.parent
    known = {
        "GOLDEN": golden / "llada-tiny",
        "SPEED": root / "benchmarks" / "records" / "speed",
        "README.md": root / "README.md",
    }
    code, out, err = lastword(*(str(known.get(a, a)) for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith("lastword: ")
    assert words in err


def test_a_recipe_file_that_is_no_text_is_refused(lastword, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, err = lastword("generate", "abc", "-m", "toy", "--recipe", str(path))
    assert code == 1
    assert err.startswith("lastword: ")


def test_advice_on_the_command_line_names_its_options(lastword, golden):
    _, _, err = lastword("predict", "1 2", "--ids", "-m", str(golden / "llada-tiny"), "--limit", "95")
    assert "--exceed-max-seq-len" in err


@pytest.mark.parametrize(
    "arguments",
    [["generate", "abc", "--bogus"], ["nonsense"], ["predict", "abc", "--limit", "ten"]],
)
def test_wrong_usage_is_exit_code_2(lastword, arguments):
    code, out, err = lastword(*arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err


def test_an_interrupt_is_exit_code_130_and_says_so(lastword, monkeypatch):
    import lastword as package

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "load", interrupted)
    code, _, err = lastword("generate", "abc", "-m", "toy")
    assert code == 130
    assert "interrupted" in err


def test_an_evaluation_that_is_interrupted_says_how_to_go_on(lastword, monkeypatch, tmp_path):
    from lastword.engines.local import LocalEngine

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "ask", interrupted)
    code, _, err = lastword("eval", "--tasks", "algebra", "--limit", "1", "--out", str(tmp_path))
    assert code == 130
    assert "give the same command again" in err


@pytest.mark.parametrize("command", ["generate", "predict", "chat"])
def test_weights_are_those_that_there_are(lastword, command):
    code, _, err = lastword(command, *(["abc"] if command != "chat" else []), "--weights", "int3")
    assert code == 1
    assert "int3" in err
    assert "fp8" in err


def test_weights_of_a_server_are_its_own(lastword, tmp_path):
    code, _, err = lastword(
        "eval", "--tasks", "algebra", "--limit", "1", "--out", str(tmp_path), "--weights", "fp8",
        "--engine", "openai", "--base-url", "http://127.0.0.1:1/v1",
    )  # fmt: skip
    assert code == 1
    assert "--weights fp8 was given with --engine openai" in err


def test_fp8_weights_answer(lastword):
    asked = ("generate", "Calculate 3 + 4.", "--length", "fixed:8", "--weights", "fp8", "--json")
    code, out, _ = lastword(*asked, "-m", "tiny-llada-base", "--calibration", "none")
    assert code == 0
    assert json.loads(out)["finish"]


def test_a_reader_that_leaves_early_is_no_error_to_shout_about():
    running = subprocess.Popen(
        [sys.executable, "-m", "lastword", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running.stdout.close()
    err = running.stderr.read()
    assert running.wait(timeout=30) == 141
    assert err == ""
