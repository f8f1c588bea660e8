from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

import lastword
from lastword import (
    Auto,
    Calibrated,
    Calibration,
    EndedBy,
    Mean,
    Quantile,
    Recipe,
    Reread,
    Scaled,
    StopAtEnd,
    Survival,
    calibrate,
)
from lastword.errors import CheckpointError, PromptError, SettingError
from lastword.models.weights import fingerprint
from lastword.prompts import read_prompts
from lastword.survival import Ratios
from lastword.tasks import load_frozen


def found(ended=range(1, 20), cut=0, **families):
    return Calibration(
        weights="0123",
        limit=64,
        reading=EndedBy(),
        estimate=Quantile(0.5),
        families={"all": Ratios(tuple(n / 10 for n in ended), cut), **families},
        made_with={"lastword": "0"},
    )


# What the ratios say


def test_the_factor_is_the_ratio_of_its_rank_at_any_coverage():
    assert found().bound(0.95) == Scaled(1.9, Quantile(0.5))
    assert found().bound(0.5) == Scaled(1.0, Quantile(0.5))
    with pytest.raises(SettingError, match="at least 99 are needed"):
        found().bound(0.99)


def test_a_cut_answer_is_longer_than_any_that_ended():
    """Whatever its true length, the bound below it is the one all lengths would have given."""
    cut = found(ended=range(1, 16), cut=4)
    assert len(cut.families["all"]) == 19
    assert cut.bound(0.75) == found().bound(0.75)  # the fifteenth of nineteen, either way
    with pytest.raises(SettingError, match=r"4 of the 19 answers .* were cut .* larger limit"):
        cut.bound(0.8)


def test_the_scale_is_the_middle_ratio():
    assert found().families["all"].scale == 1.0
    assert found(ended=range(1, 10), cut=10).families["all"].scale == math.inf


def test_a_family_has_its_own_ratios():
    both = found(short=Ratios((0.5,) * 9))
    assert both.bound(0.9, "short").factor == 0.5
    with pytest.raises(SettingError, match=r"family 'long'.*known: all, short"):
        both.bound(0.9, "long")


def test_ratios_are_sorted_into_their_families():
    made = Calibration.of(
        [10.0, 10.0, 20.0],
        [5, None, 30],
        ["a", "a", None],
        weights="",
        limit=9,
        reading=Auto(),
        estimate=Mean(),
    )
    assert made.families == {"all": Ratios((0.5, 1.5), 1), "a": Ratios((0.5,), 1)}


def test_a_calibration_survives_its_file(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text(found(a=Ratios((1.25,), 2)).to_json())
    assert Calibration.read(path) == found(a=Ratios((1.25,), 2))


@pytest.mark.parametrize(
    "change",
    [
        {"reading": "tea leaves"},
        {"estimate": {"name": "guess"}},
        {"estimate": {"name": "quantile", "q": 7}},
        {"families": {"some": {"ended": [1.0], "cut": 0}}},
        {"families": {"all": {"ended": [-1.0], "cut": 0}}},
        {"limit": "many"},
        {"weights": ...},
    ],
    ids=str,
)
def test_a_file_that_is_no_calibration_is_refused_with_its_name(change, tmp_path):
    data = {**json.loads(found().to_json()), **change}
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    with pytest.raises(CheckpointError, match=r"lengths\.json is no calibration"):
        Calibration.read(path)


# The policy


def test_decoding_puts_the_survival_in_its_place():
    model = lastword.models.Toy(0.1)
    model.lengths = replace(found(), reading=lastword.Hazard())
    plain = Survival(64, Scaled(1.9, Quantile(0.5)))
    for wrap in (lambda policy: policy, StopAtEnd, Reread, lambda p: StopAtEnd(Reread(p))):
        recipe = Recipe(length=wrap(Calibrated(0.95)), block=8)
        assert recipe.fitted(model).length == wrap(plain)
        one, other = (
            lastword.generate(model, "abc", length=wrap(policy), block=8)
            for policy in (Calibrated(0.95), plain)
        )
        assert (one.tokens, one.horizon, one.cost) == (other.tokens, other.horizon, other.cost)
        assert one.probe_cost["columns"] == 3 + 64


def test_a_recipe_without_it_stays_what_it_is():
    model = lastword.models.Toy()
    for recipe in (Recipe(), Recipe(length=StopAtEnd(Survival(9)), block=4)):
        assert recipe.fitted(model) is recipe


@pytest.mark.parametrize("length", [Calibrated(), StopAtEnd(Calibrated())], ids=str)
def test_a_model_that_was_not_calibrated_is_refused_before_the_first_pass(length, toy):
    with pytest.raises(SettingError, match="not calibrated; run lastword calibrate"):
        lastword.generate(toy, "abc", length=length, block=8)


# Learning


class Counted:
    """Says the alphabet and ends after as many letters as the prompt has, twice over."""

    ids, positions, device = lastword.models.Toy.ids, 2**31, torch.device("cpu")
    tokenizer = lastword.models.Toy.tokenizer

    def __init__(self):
        self.lengths = None

    def __call__(self, tokens, read, *, valid=None, stale=None, memory=None):
        logits = torch.zeros(*tokens.shape, self.ids.vocabulary)
        for row in range(len(tokens)):
            real = torch.ones_like(tokens[row], dtype=torch.bool) if valid is None else valid[row]
            prompt = int((tokens[row][real] == 1).sum())  # the prompt is all b, the answer all a
            start = int(real.long().argmax()) + prompt
            # Half as long as it will be, the model believes before it has written a word.
            blank = bool((tokens[row, start:] >= 26).all())
            end = start + (prompt if blank else 2 * prompt)
            logits[row, :, 0] = 30.0 - torch.arange(tokens.shape[1]) / 100
            logits[row, end:, 0] = 0
            logits[row, end:, self.ids.end] = 30.0
        return logits.gather(1, read[..., None].expand(-1, -1, self.ids.vocabulary))


PROMPTS = ["b" * n for n in range(3, 12)]
ONE_BY_ONE = Recipe(length=lastword.Fixed(), block=1)


def test_what_a_model_writes_is_compared_with_what_it_believed():
    model = Counted()
    made = calibrate(model, PROMPTS, limit=40, reading=EndedBy(), recipe=ONE_BY_ONE, rows=4)
    assert made.families["all"].cut == 0
    # n words and the end were expected, 2 n and the end came.
    expected = sorted((2 * n + 1) / (n + 1) for n in range(3, 12))
    assert made.families["all"].ended == pytest.approx(expected, abs=1e-6)
    model.lengths = made
    answers = lastword.generate(model, PROMPTS, length=Calibrated(0.9), block=1)
    assert all(answer.finish is lastword.Finish.ENDED for answer in answers)
    assert made.made_with["recipe"]["length"]["length"]["slots"] == 40


def test_answers_that_are_cut_are_counted_and_too_many_are_refused():
    made = calibrate(
        Counted(), PROMPTS, limit=21, reading=EndedBy(), recipe=ONE_BY_ONE, coverage=0.5
    )
    assert made.families["all"].cut == 1  # 11 letters, 22 words
    with pytest.raises(SettingError, match="1 of the 9 answers"):
        calibrate(Counted(), PROMPTS, limit=21, reading=EndedBy(), recipe=ONE_BY_ONE)


def test_too_few_prompts_are_refused_before_the_first_pass():
    unasked = Counted()
    unasked.ids = None  # no pass works without
    with pytest.raises(SettingError, match=r"8 prompts cannot .* at least 9 are needed"):
        calibrate(unasked, PROMPTS[:8])
    with pytest.raises(SettingError, match=r"1 prompts of the family 'b' .* at least 9"):
        calibrate(unasked, ["a"] * 10, ["a"] * 9 + ["b"])
    with pytest.raises(SettingError, match="10 prompts and 9 families"):
        calibrate(unasked, ["a"] * 10, ["a"] * 9)


# From a file of prompts to a canvas


def written(tmp_path, name, *lines):
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return path


def test_prompts_are_lines_or_objects(tmp_path):
    plain = written(tmp_path, "prompts.txt", "one", "", 'two "x"')
    assert read_prompts(plain) == (["one", 'two "x"'], [None, None])
    objects = written(tmp_path, "p.jsonl", '{"prompt": "a\\nb", "task": 3}', '{"prompt": [1, 2]}')
    assert read_prompts(objects) == (["a\nb", [1, 2]], [None, None])
    chat = [{"role": "user", "content": "a\nb"}]
    first = written(tmp_path, "one.jsonl", '{"prompt": "a\\nb", "task": 3}')
    assert read_prompts(first, "task", chat=True) == ([chat], ["3"])


@pytest.mark.parametrize(
    ("name", "line", "field", "words"),
    [
        ("p.txt", "a", "task", "families need a .jsonl file"),
        ("p.txt", "", None, "holds no prompts"),
        ("p.jsonl", "{", None, "line 1 of p.jsonl is not JSON"),
        ("p.jsonl", "[1]", None, "no object"),
        ("p.jsonl", '{"text": "a"}', None, "no field 'prompt'; it has text"),
        ("p.jsonl", '{"prompt": "a"}', "task", "no field 'task'"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(name, line, field, words, tmp_path):
    with pytest.raises(PromptError, match=words):
        read_prompts(written(tmp_path, name, line), field)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """An embedded model and the file the command line wrote for it."""
    from typer.testing import CliRunner

    from lastword.cli import app

    folder = tmp_path_factory.mktemp("calibration")
    asked = [
        {"prompt": example.prompt, "task": family}
        for family in ("algebra", "reasoning")
        for example in load_frozen("validation", family)[:5]
    ]
    prompts, out = folder / "asked.jsonl", folder / "found.json"
    prompts.write_text("\n".join(map(json.dumps, asked)))
    options = ["--model", "tiny-llada-base", "--prompts", prompts, "--family-field", "task"]
    options += ["--coverage", "0.6", "--limit", "192", "--unmask", "threshold:0.5", "--out", out]
    run = CliRunner().invoke(app, ["calibrate", *map(str, options), "--device", "cpu"])
    return run, out


def test_the_command_line_calibrates_by_family(calibrated):
    run, out = calibrated
    assert run.exit_code == 0, run.output
    assert "calibrated:0.6" in run.output
    made = Calibration.read(out)
    assert list(made.families) == ["all", "algebra", "reasoning"]
    assert [len(ratios) for ratios in made.families.values()] == [10, 5, 5]
    assert made.limit == 192
    assert made.reading == Auto()
    assert made.weights == fingerprint(lastword.load("tiny-llada-base", device="cpu"))


def test_the_file_is_found_by_name_and_used_by_name(calibrated):
    from typer.testing import CliRunner

    from lastword.cli import app

    _, out = calibrated
    prompt = load_frozen("validation", "algebra")[7].prompt
    options = ["--model", "tiny-llada-base", "--lengths", str(out), "--device", "cpu"]
    options += ["--length", "calibrated:0.6,family=algebra", "--unmask", "threshold:0.5"]
    run = CliRunner().invoke(app, ["generate", prompt, *options, "--block", "32", "--json"])
    assert run.exit_code == 0, run.output
    answer = json.loads(run.output)
    model = lastword.load("tiny-llada-base", device="cpu", lengths=out)
    lengths = lastword.predict_length(model, prompt, limit=192, reading=Auto())
    bound = model.lengths.bound(0.6, "algebra")(lengths).item()
    assert answer["horizon"] == math.ceil(bound)


def test_a_folder_s_own_file_is_picked_up_and_another_model_s_is_refused(checkpoint):
    folder = checkpoint("llada-tiny")
    assert lastword.load(folder, device="cpu").lengths is None
    weights = fingerprint(lastword.load(folder, device="cpu"))
    (folder / "lengths.json").write_text(replace(found(), weights=weights).to_json())
    assert lastword.load(folder, device="cpu").lengths == replace(found(), weights=weights)
    (folder / "lengths.json").write_text(found().to_json())
    with pytest.raises(CheckpointError, match="learnt from other weights"):
        lastword.load(folder, device="cpu")
    assert lastword.load(folder, device="cpu", lengths=None).lengths is None


def test_the_command_line_says_where_it_would_write_before_it_decodes(tmp_path):
    from typer.testing import CliRunner

    from lastword.cli import app

    prompts = written(tmp_path, "p.txt", "abc")
    for options, words in (
        (["--model", "toy"], "--out FILE"),
        (["--model", "toy", "--out", str(tmp_path / "no" / "x.json")], "there is no folder"),
        (["--model", "toy", "--out", str(tmp_path / "x.json")], "at least 9 are needed"),
    ):
        run = CliRunner().invoke(app, ["calibrate", "--prompts", str(prompts), *options])
        assert run.exit_code == 1
        assert words in " ".join(run.output.split())
