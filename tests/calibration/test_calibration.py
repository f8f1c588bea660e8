from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace

import pytest
import torch

import lastword
from lastword import (
    AboveThreshold,
    Auto,
    Calibrated,
    Cheapest,
    EndedBy,
    Fixed,
    GrowWhenFull,
    Mean,
    MostConfident,
    Quantile,
    Recipe,
    Sampling,
    Scaled,
    StopAtEnd,
    Survival,
    calibrate,
)
from lastword.calibration import Calibration, Ratios
from lastword.errors import CapacityError, CheckpointError, PromptError, SettingError
from lastword.io.prompts import read_prompts
from lastword.models.base import MaskPredictor
from lastword.models.weights import fingerprint, model_key
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.wrappers import Wrapper
from lastword.recipe.resolve import resolve
from lastword.survival.conformal import required_factor
from lastword.tasks import load_frozen


def found(ended=range(1, 20), cut=0, **families):
    return Calibration(
        model_key="0123",
        limit=64,
        interpretation=EndedBy(),
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
    with pytest.raises(SettingError, match=r"4 of the 19 answers .* were truncated.* larger limit"):
        cut.bound(0.8)


def test_the_scale_is_the_middle_ratio():
    assert found().families["all"].scale == 1.0
    assert found(ended=range(1, 10), cut=10).families["all"].scale == math.inf


def test_no_answers_are_no_ratios():
    with pytest.raises(SettingError, match="at least one ratio"):
        Ratios(())


def test_a_family_has_its_own_ratios():
    both = found(short=Ratios((0.5,) * 9))
    assert both.bound(0.9, "short").factor == 0.5
    with pytest.raises(SettingError, match=r"family 'long'.*known: all, short"):
        both.bound(0.9, "long")


def test_ratios_are_sorted_into_their_families():
    made = Calibration.from_answers(
        [10.0, 10.0, 20.0],
        [5, None, 30],
        ["a", "a", None],
        model_key="",
        limit=9,
        interpretation=Auto(),
        estimate=Mean(),
    )
    short, long = required_factor(10.0, 5), required_factor(20.0, 30)
    assert made.families == {"all": Ratios((short, long), 1), "a": Ratios((short,), 1)}


def test_a_calibration_survives_its_file(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text(found(a=Ratios((1.25,), 2)).to_json())
    assert Calibration.from_file(path) == found(a=Ratios((1.25,), 2))


def test_a_file_of_an_older_version_is_read(tmp_path):
    path = tmp_path / "lengths.json"
    calibration = replace(found(), estimate=Cheapest(30.0))
    text = calibration.to_json()
    names = {"model_key": "weights", "interpretation": "reading", "truncated": "cut", "truncation_cost": "cut"}
    for new, old in names.items():
        assert f'"{new}"' in text
        text = text.replace(f'"{new}"', f'"{old}"')
    path.write_text(text)
    assert Calibration.from_file(path) == calibration


@pytest.mark.parametrize(
    "change",
    [
        {"interpretation": "tea leaves"},
        {"estimate": {"name": "guess"}},
        {"estimate": {"name": "quantile", "q": 7}},
        {"estimate": {"name": "mean", "q": 0.5}},
        {"families": {"some": {"ended": [1.0], "cut": 0}}},
        {"families": {"all": {"ended": [-1.0], "cut": 0}}},
        {"limit": "many"},
        {"model_key": ...},
    ],
    ids=str,
)
def test_a_file_that_is_no_calibration_is_refused_with_its_name(change, tmp_path):
    data = {**json.loads(found().to_json()), **change}
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    with pytest.raises(CheckpointError, match=r"lengths\.json is not a calibration"):
        Calibration.from_file(path)


# The policy


def test_decoding_puts_the_survival_in_its_place():
    model = lastword.Toy(0.1)
    model.calibration = replace(found(), interpretation=lastword.Hazard(), model_key=model_key(model))
    plain = Survival(64, Scaled(1.9, Quantile(0.5)))
    for wrap in (lambda policy: policy, StopAtEnd, lambda p: StopAtEnd(GrowWhenFull(p))):
        recipe = Recipe(length=wrap(Calibrated(0.95)), block=8)
        assert resolve(recipe, model).length == resolve(replace(recipe, length=wrap(plain)), model).length
        one, other = (
            lastword.generate(model, "abc", length=wrap(policy), block=8) for policy in (Calibrated(0.95), plain)
        )
        assert (one.tokens, one.horizon, one.cost) == (other.tokens, other.horizon, other.cost)
        assert one.probe_cost.tokens_computed == 3 + 64


@pytest.mark.parametrize("length", [Calibrated(), StopAtEnd(Calibrated())], ids=str)
def test_a_model_that_was_not_calibrated_is_refused_before_the_first_pass(length, toy):
    with pytest.raises(SettingError, match="without a calibration; run lastword calibrate"):
        lastword.generate(toy, "abc", length=length, block=8)


@dataclass(frozen=True)
class Forgetful(LengthPolicy):
    """A policy around another that does not pass `resolved` on."""

    wrapped: LengthPolicy

    def plan(self, probe):
        return self.wrapped.plan(probe)


@dataclass(frozen=True)
class ForgetfulWrapper(Wrapper):
    """One that shows what it wraps, and forgets it as well."""

    def resolved(self, slots):
        return self


@pytest.mark.parametrize("wrap", [Forgetful, ForgetfulWrapper])
def test_a_wrapper_that_does_not_pass_the_calibration_on_is_told_to(wrap):
    model = lastword.Toy()
    model.calibration = replace(found(), model_key=model_key(model))
    with pytest.raises(SettingError, match=r"`resolved`.*as lastword\.policies\.length\.wrappers\.Wrapper"):
        lastword.generate(model, "abc", length=wrap(Calibrated()))


MADE_WITH = Recipe(unmask=AboveThreshold(0.8), block=8, length=StopAtEnd(lastword.Fixed(64)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unmask": lastword.MostConfident()}, "unmask threshold:0.8, and .* unmask most-confident"),
        ({"unmask": AboveThreshold(0.9)}, r"unmask threshold:0\.8, .* has unmask threshold"),
        ({"block": 16}, "with block 8, and this recipe has block 16"),
        ({"commit": lastword.StableMargin()}, "commit never, .* commit stable-margin"),
        ({"sampling": lastword.Sampling(temperature=1.0)}, r"sampling:(temperature=)?1\.0"),
    ],
    ids=str,
)
def test_a_recipe_that_decodes_otherwise_is_refused(change, words):
    model = lastword.Toy()
    said = {"recipe": json.loads(MADE_WITH.to_json())}
    model.calibration = replace(found(), model_key=model_key(model), made_with=said)
    same = replace(MADE_WITH, length=Calibrated(0.5))
    assert isinstance(resolve(same, model).length, Survival)
    model.supports_cache = True
    assert resolve(replace(same, cache=lastword.FeatureCache()), model)
    with pytest.raises(SettingError, match=f"{words}.*calibrate for this recipe"):
        resolve(replace(same, **change), model)
    assert resolve(replace(same, **change, length=Survival(9)), model)  # nobody asks


def test_a_recipe_without_blocks_takes_those_of_the_calibration():
    model = lastword.Toy()
    for blocks, expected in ((8, 8), (None, None)):
        said = {"recipe": json.loads(replace(MADE_WITH, length=Fixed(64), block=blocks).to_json())}
        model.calibration = replace(found(), model_key=model_key(model), made_with=said)
        asked = replace(MADE_WITH, length=Calibrated(0.5), block=None)
        assert resolve(asked, model).block == expected
        assert resolve(replace(asked, length=Survival(9)), model).block is None


def test_a_calibration_belongs_to_weights_dtype_and_ends(checkpoint):
    folder = checkpoint("llada-tiny")
    model = lastword.load(folder, device="cpu")
    known = model_key(model)
    assert known == model_key(lastword.load(folder, device="cpu"))
    half = lastword.load(folder, device="cpu", dtype="bfloat16")
    turned = lastword.load(folder, device="cpu", turn_ends=[3, 4])
    assert len({known, model_key(half), model_key(turned), fingerprint(model)}) == 4
    turned.calibration = replace(found(), model_key=known)
    with pytest.raises(CheckpointError, match="the model's calibration was made for other"):
        lastword.generate(turned, [1, 2], length=Calibrated(0.5))


def test_a_model_without_weights_is_known_by_its_name():
    assert model_key(lastword.Toy(0.1)) != model_key(lastword.Toy(0.2))

    def forward(tokens):
        raise AssertionError("no pass is run")

    mine, yours = (lastword.Adapter(forward, Counted.ids, name=name) for name in ("a", "b"))
    assert model_key(mine) != model_key(yours)
    with pytest.raises(SettingError, match=r"no visible weights.*Adapter\(\.\.\., name="):
        calibrate(lastword.Adapter(forward, Counted.ids), [[1]] * 9, limit=8)


# Learning


class Counted(MaskPredictor):
    """Says the alphabet and ends after as many letters as the prompt has, twice over."""

    name = "counted"
    ids, max_seq_len, device = lastword.Toy.ids, 2**31, torch.device("cpu")
    tokenizer = lastword.Toy.tokenizer

    def __init__(self):
        self.calibration = None

    def __call__(self, tokens, read, *, valid=None, stale=None, storage=None):
        logits = torch.zeros(*tokens.shape, self.ids.vocab_size)
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
        return logits.gather(1, read[..., None].expand(-1, -1, self.ids.vocab_size))


class Chatty(Counted):
    """Reads a conversation as what was said."""

    class tokenizer(type(Counted.tokenizer)):
        def chat(self, messages):
            return self.encode("".join(message["content"] for message in messages))

    tokenizer = tokenizer()


def message(text):
    return {"role": "user", "content": text}


PROMPTS = ["b" * n for n in range(3, 12)]
ONE_BY_ONE = Recipe(length=lastword.Fixed(), block=1)


def test_what_a_model_writes_is_compared_with_what_it_believed():
    model = Counted()
    made = calibrate(model, PROMPTS, limit=40, interpretation=EndedBy(), recipe=ONE_BY_ONE, max_batch_size=4)
    assert made.families["all"].truncated == 0
    # n words and the end were expected, 2 n and the end came.
    expected = sorted(required_factor(n + 1.0, 2 * n + 1) for n in range(3, 12))
    assert made.families["all"].ended == pytest.approx(expected, abs=1e-6)
    model.calibration = made
    answers = lastword.generate(model, PROMPTS, length=Calibrated(0.9), recipe=ONE_BY_ONE)
    assert all(answer.finish is lastword.Finish.ENDED for answer in answers)
    assert made.made_with["recipe"]["length"]["length"]["slots"] == 40


def test_answers_that_are_cut_are_counted_and_a_bound_among_them_is_refused_when_asked_for():
    made = calibrate(Counted(), PROMPTS, limit=21, interpretation=EndedBy(), recipe=ONE_BY_ONE)
    assert made.families["all"].truncated == 1  # 11 letters, 22 words
    assert made.bound(0.8).factor > 1
    with pytest.raises(SettingError, match="1 of the 9 answers"):
        made.bound(0.9)


@pytest.mark.parametrize("recipe", [ONE_BY_ONE, Recipe.named("fixed")], ids=str)
def test_answers_none_of_which_ended_are_no_calibration(recipe):
    with pytest.raises(SettingError, match=r"none of the 9 answers ended within 5 slots.*larger limit.*another recipe"):
        calibrate(Counted(), PROMPTS, limit=5, interpretation=EndedBy(), recipe=recipe)


@pytest.mark.parametrize(
    ("prompts", "chat"),
    [
        (PROMPTS, False),
        ([message(text) for text in PROMPTS], True),
        ([[1] * n for n in range(3, 12)], None),
        ([message(PROMPTS[0]), *PROMPTS[1:]], None),
    ],
    ids=["text", "chat", "ids", "both"],
)
def test_a_calibration_says_how_its_prompts_were_laid_out(prompts, chat):
    made = calibrate(Chatty(), prompts, limit=40, interpretation=EndedBy(), recipe=ONE_BY_ONE)
    assert made.made_with["chat"] is chat
    assert json.loads(made.to_json())["made_with"]["chat"] is chat


@pytest.mark.parametrize("chat", [True, False, None])
def test_prompts_laid_out_otherwise_are_refused(chat):
    model = Chatty()
    said = {} if chat is None else {"chat": chat}  # old files do not say
    model.calibration = replace(found(), model_key=model_key(model), made_with=said)
    asks = {True: [message("bbb")], False: "bbb", None: [1, 1, 1]}
    for kind, prompt in asks.items():
        for asked in (prompt, [prompt], [asks[None], prompt]):
            if None in (chat, kind) or chat == kind:
                assert lastword.generate(model, asked, length=Calibrated(0.5))
                continue
            words = r"as chat .* is plain text" if chat else "as plain text, .* is chat messages"
            with pytest.raises(SettingError, match=f"{words}.*--chat.*or calibrate on prompts"):
                lastword.generate(model, asked, length=StopAtEnd(Calibrated(0.5)), block=8)
            assert lastword.generate(model, asked, length=Survival(9))  # nobody asks


class Unasked(Counted):
    """No pass of it may be run."""

    def __call__(self, tokens, read, *, valid=None, stale=None, storage=None):
        raise AssertionError("a pass was run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ends": "some"}, "ends='some'"),
        ({"limit": 0}, "limit=0"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"families": ["all"] * 9}, "a family called 'all' was given"),
        ({"prompts": "bbbbbbbbb"}, "one prompt, a str; give it a list"),
    ],
    ids=str,
)
def test_whatever_is_wrong_is_said_before_the_first_pass(change, words):
    with pytest.raises(lastword.LastwordError, match=words):
        calibrate(**{"model": Unasked(), "prompts": PROMPTS, "limit": 8, **change})


def test_what_is_of_the_wrong_type_is_said_by_us(in_plain_python):
    wrong = ["estimate=lastword.Scaled(1.2)", "estimate=lastword.Mean", "interpretation='auto'"]
    wrong += ["recipe=3", "families=[3] * 9"]
    codes = [f"lastword.calibrate(toy, ['b'] * 9, limit=8, {one})" for one in wrong]
    for prompts in ("{'role': 'user'}", "[['b'] * 9]", "[1] * 9"):
        codes.append(f"lastword.calibrate(toy, {prompts}, limit=8)")
    assert set(in_plain_python(codes).values()) == {"SettingError", "PromptError"}


def test_the_longest_prompt_must_leave_room_before_the_first_pass():
    model = Unasked()
    model.max_seq_len = 50
    with pytest.raises(CapacityError, match=r"horizon 32 \+ prompt 20 exceeds"):
        calibrate(model, [*PROMPTS, "b" * 20], limit=32)


def test_a_lone_message_is_a_prompt():
    lone = [message(text) for text in PROMPTS]
    settings = {"limit": 40, "interpretation": EndedBy(), "recipe": ONE_BY_ONE}
    plain = calibrate(Counted(), PROMPTS, **settings)
    for prompts in (lone, [[message] for message in lone]):
        made = calibrate(Chatty(), prompts, **settings)
        assert made.families == plain.families
        assert made.made_with == {**plain.made_with, "chat": True}


def test_too_few_prompts_are_refused_before_the_first_pass():
    unasked = Unasked()
    with pytest.raises(SettingError, match=r"8 prompts do not .* at least 9 are needed"):
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
    first = written(tmp_path, "one.jsonl", json.dumps({"messages": chat, "task": 3}))
    assert read_prompts(first, "task") == ([chat], ["3"])
    without = written(tmp_path, "without.jsonl", '{"prompt": "a", "task": null}')
    assert read_prompts(without, "task") == (["a"], [None])


@pytest.mark.parametrize(
    ("name", "line", "field", "words"),
    [
        ("p.txt", "a", "task", "families need a .jsonl file"),
        ("p.txt", "", None, "has no prompts"),
        ("p.jsonl", "{", None, "line 1 of p.jsonl: it is not JSON"),
        ("p.jsonl", "[1]", None, "not an object"),
        ("p.jsonl", '{"text": "a"}', None, "no field prompt, messages or tokens; it has 'text'"),
        ("p.jsonl", '{"prompt": "a"}', "task", "no field 'task'"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(name, line, field, words, tmp_path):
    with pytest.raises(PromptError, match=words):
        read_prompts(written(tmp_path, name, line), field)


def run_command(*words, home=None):
    from typer.testing import CliRunner

    from lastword.cli import app

    environment = {} if home is None else {"LASTWORD_HOME": str(home)}
    return CliRunner().invoke(app, [*map(str, words)], env=environment)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """An embedded model and the file the command line wrote for it."""
    folder = tmp_path_factory.mktemp("calibration")
    asked = [
        {"prompt": example.prompt, "task": family}
        for family in ("algebra", "reasoning")
        for example in load_frozen("validation", family)[:2]
    ]
    prompts, out = folder / "asked.jsonl", folder / "found.json"
    prompts.write_text("\n".join(map(json.dumps, asked)))
    options = ["--model", "tiny-llada-base", "--prompts", prompts, "--family-field", "task", "--device", "cpu"]
    options += ["--coverage", "0.6", "--slots", "192", "--unmask", "threshold:0.5", "--out", out]
    return run_command("calibrate", *options), out


@pytest.mark.slow
def test_the_command_line_calibrates_by_family(calibrated):
    run, out = calibrated
    assert run.exit_code == 0, run.output
    assert "calibrated:0.6" in run.output
    made = Calibration.from_file(out)
    assert list(made.families) == ["all", "algebra", "reasoning"]
    assert [len(ratios) for ratios in made.families.values()] == [4, 2, 2]
    assert made.limit == 192
    assert made.interpretation == Auto()
    assert made.model_key == model_key(lastword.load("tiny-llada-base", device="cpu"))


@pytest.mark.slow
def test_the_file_is_found_by_name_and_used_by_name(calibrated):
    _, out = calibrated
    prompt = load_frozen("validation", "algebra")[7].prompt
    options = ["--model", "tiny-llada-base", "--calibration", out, "--device", "cpu"]
    options += ["--length", "calibrated:0.6,family=algebra", "--unmask", "threshold:0.5"]
    run = run_command("generate", prompt, *options, "--json")
    assert run.exit_code == 0, run.output
    answer = json.loads(run.output)
    model = lastword.load("tiny-llada-base", device="cpu", calibration=out)
    lengths = lastword.predict_length(model, prompt, limit=192, interpretation=Auto())
    bound = model.calibration.bound(0.6, "algebra")(lengths).item()
    assert answer["horizon"] == math.ceil(bound)


def test_a_folder_s_own_file_is_picked_up_and_another_model_s_is_refused(checkpoint):
    folder = checkpoint("llada-tiny")
    assert lastword.load(folder, device="cpu").calibration is None
    weights = model_key(lastword.load(folder, device="cpu"))
    (folder / "lengths.json").write_text(replace(found(), model_key=weights).to_json())
    assert lastword.load(folder, device="cpu").calibration == replace(found(), model_key=weights)
    (folder / "lengths.json").write_text(found().to_json())
    with pytest.raises(CheckpointError, match="made for other weights"):
        lastword.load(folder, device="cpu")
    assert lastword.load(folder, device="cpu", calibration=None).calibration is None


# The command line

DRAWN = ("--temperature", "1.5")  # some answers end, by chance
IDS = [{"tokens": [n + 5, 7, 9, 11]} for n in range(9)]


def printed_command(run):
    """Return the words of the command that `lastword calibrate` advises, without the program."""
    assert run.exit_code == 0, run.output
    _, *words = shlex.split(run.output.partition("next: ")[2])
    return words


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Run a command in an empty folder, with a home for calibrations beside it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *words: run_command(*words, home=tmp_path / "home")


@pytest.fixture
def toy_calibrated(tried, tmp_path):
    """The run of a calibration of the toy, and the only file that it wrote."""
    prompts = written(tmp_path, "p.txt", *["abc"] * 12)
    run = tried("calibrate", "--prompts", prompts, "--model", "toy", "--slots", 64, "--coverage", 0.2, *DRAWN)
    assert run.exit_code == 0, run.output
    (saved,) = (tmp_path / "home").rglob("*.json")
    return run, saved


def test_a_calibration_of_a_model_without_folder_is_saved_by_the_model_s_key(toy_calibrated, toy, tmp_path):
    run, saved = toy_calibrated
    assert saved == tmp_path / "home" / "calibrations" / f"{model_key(toy)}.json"
    assert f"wrote {saved}" in run.output
    assert not list((tmp_path / "here").iterdir())


def test_the_printed_command_answers_with_the_saved_calibration(toy_calibrated, tried, monkeypatch):
    run, saved = toy_calibrated
    words = printed_command(run)
    assert words == ["generate", "abc", "--length", "calibrated:0.2", "--model", "toy", *DRAWN]
    done = tried(*words, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    monkeypatch.setenv("LASTWORD_HOME", str(saved.parent.parent))
    model = lastword.load("toy")
    assert model.calibration == Calibration.from_file(saved)
    lengths = lastword.predict_length(model, "abc", limit=64)
    assert answer["horizon"] == math.ceil(model.calibration.bound(0.2)(lengths).item())


@pytest.mark.parametrize("calibration", [None, "none"])
def test_a_saved_calibration_is_read_only_if_it_is_asked_for(toy_calibrated, monkeypatch, calibration):
    _, saved = toy_calibrated
    monkeypatch.setenv("LASTWORD_HOME", str(saved.parent.parent))
    if calibration is None:
        assert lastword.load("toy", calibration=None).calibration is None
        return
    run = run_command("generate", "abc", "-m", "toy", "--length", "calibrated:0.2", "--calibration", calibration)
    assert run.exit_code == 1
    assert "without a calibration" in run.output


def test_a_saved_calibration_belongs_to_the_weights_it_was_made_for(toy_calibrated, monkeypatch, golden):
    _, saved = toy_calibrated
    monkeypatch.setenv("LASTWORD_HOME", str(saved.parent.parent))
    assert lastword.load("toy").calibration is not None
    assert lastword.load(golden / "llada-tiny", device="cpu").calibration is None


def test_the_calibration_of_a_folder_is_written_into_it_and_used_by_the_printed_command(tried, checkpoint, tmp_path):
    folder = checkpoint("llada-tiny")
    prompts = written(tmp_path, "ids.jsonl", *map(json.dumps, IDS))
    options = ("--model", folder, "--slots", 64, "--coverage", 0.3, "--recipe", "paper", *DRAWN)
    run = tried("calibrate", "--prompts", prompts, *options)
    words = printed_command(run)
    assert f"wrote {folder / 'lengths.json'}" in run.output
    assert not (tmp_path / "home").exists()
    assert words[:4] == ["batch", str(prompts), "--out", "answers.jsonl"]
    done = tried(*words)
    assert done.exit_code == 0, done.output
    answers = [json.loads(line) for line in (tmp_path / "here" / "answers.jsonl").read_text().splitlines()]
    assert [answer["failed"] for answer in answers] == [None] * 9
    model = lastword.load(folder, device="cpu")
    lengths = lastword.predict_length(model, IDS[0]["tokens"], limit=64)
    assert answers[0]["horizon"] == math.ceil(model.calibration.bound(0.3)(lengths).item())


def test_a_calibration_in_another_file_is_named_in_the_printed_command(tried, tmp_path):
    prompts, out = written(tmp_path, "p.txt", *["abc"] * 12), tmp_path / "my own.json"
    options = ("--model", "toy", "--slots", 64, "--coverage", 0.2, "--out", out, *DRAWN)
    words = printed_command(tried("calibrate", "--prompts", prompts, *options))
    assert words[-2:] == ["--calibration", str(out)]
    assert not (tmp_path / "home").exists()
    assert tried(*words).exit_code == 0


def test_no_command_is_printed_if_the_bound_is_unknown(tried, tmp_path):
    prompts = written(tmp_path, "p.txt", *["abc"] * 12)
    run = tried("calibrate", "--prompts", prompts, "--model", "toy", "--slots", 64, "--coverage", 0.9, *DRAWN)
    assert run.exit_code == 0
    assert "so no bound that covers 90% is known" in run.output
    assert "next: " not in run.output


def test_calibrate_takes_the_first_prompts(tried, tmp_path):
    prompts = written(tmp_path, "p.txt", *["abc"] * 12)
    options = ("--prompts", prompts, "--model", "toy", "--slots", 64, "--limit")
    for limit, needed in ((3, "3 prompts do not suffice"), (None, "")):
        run = tried("calibrate", *options, limit or 10, "--coverage", 0.9 if needed else 0.2, *DRAWN)
        assert run.exit_code == bool(needed)
        assert needed in run.output
    (saved,) = (tmp_path / "home").rglob("*.json")
    assert len(Calibration.from_file(saved).families["all"]) == 10


def test_the_command_line_says_where_it_would_write_before_it_decodes(tmp_path):
    prompts = written(tmp_path, "p.txt", "abc")
    for options, words in (
        (["--model", "toy", "--out", tmp_path], "is a folder"),
        (["--model", "toy", "--out", prompts / "x.json"], "cannot be written"),
        (["--model", "toy", "--out", tmp_path / "x.json"], "at least 9 are needed"),
    ):
        run = run_command("calibrate", "--prompts", prompts, *options)
        assert run.exit_code == 1
        assert words in " ".join(run.output.split())


def test_the_command_line_takes_a_recipe_and_keeps_what_it_cannot_bound(tmp_path):
    prompts, out = written(tmp_path, "p.txt", *["abc"] * 9), tmp_path / "found.json"
    drawn = Recipe(sampling=Sampling(temperature=1.0))  # some of the toy's answers end, by chance
    given = replace(drawn, unmask=AboveThreshold(0.7), block=4)
    chosen = written(tmp_path, "r.json", given.to_json())
    options = ["--prompts", prompts, "--model", "toy", "--out", out, "--slots", 6]
    options += ["--interpretation", "hazard", "--recipe", chosen]
    for more, expected in (
        ([], given),
        (["--unmask", "threshold:0.6", "--block", 3], replace(given, unmask=AboveThreshold(0.6), block=3)),
    ):
        run = run_command("calibrate", *options, *more)
        assert run.exit_code == 0, run.output
        made = Calibration.from_file(out)
        cut = made.families["all"].truncated
        assert 0 < cut < 9
        assert f"all: {cut} of the 9 answers of this calibration were truncated" in " ".join(run.output.split())
        with_it = Recipe.from_json(json.dumps(made.made_with["recipe"]))
        assert (with_it.unmask, with_it.block) == (expected.unmask, expected.block)


@pytest.mark.parametrize(
    ("name", "unmask", "block"),
    [(None, MostConfident(), 32), ("careful", MostConfident(), 32), ("fast", AboveThreshold(0.97), 32),
     ("paper", MostConfident(), None)],
)  # fmt: skip
def test_a_recipe_by_name_is_calibrated_in_the_blocks_it_decodes_in(name, unmask, block):
    made = calibrate(Counted(), PROMPTS, limit=40, interpretation=EndedBy(), recipe=name)
    with_it = Recipe.from_json(json.dumps(made.made_with["recipe"]))
    assert (with_it.unmask, with_it.block) == (unmask, block)


def test_the_command_line_writes_nothing_if_no_answer_ended(tmp_path):
    prompts, out = written(tmp_path, "p.txt", *["abc"] * 9), tmp_path / "found.json"
    run = run_command("calibrate", "--prompts", prompts, "--model", "toy", "--out", out, "--slots", 6)
    assert run.exit_code == 1
    assert "none of the 9 answers ended within 6 slots" in " ".join(run.output.split())
    assert not out.exists()


def test_text_is_calibrated_with_the_chat_template_of_an_instruct_model(tmp_path):
    def run(*words):
        return run_command(*words, "-m", "tiny-llada-instruct", "--device", "cpu", "--unmask", "threshold:0.1")

    prompts = written(tmp_path, "p.txt", "Calculate 3 + 4. Be brief.", "Calculate 5 + 4. Be brief.")
    out = tmp_path / "found.json"
    made = run("calibrate", "--prompts", prompts, "--coverage", 0.5, "--out", out, "--slots", 96)
    assert run_command(*printed_command(made)).exit_code == 0
    assert Calibration.from_file(out).made_with["chat"] is True
    asked = ["generate", "Calculate 3 + 5. Be brief.", "--calibration", out, "--length", "calibrated:0.5"]
    for chat in ([], ["--chat"]):
        assert run(*asked, *chat).exit_code == 0
    refused = run(*asked, "--no-chat")
    assert refused.exit_code == 1
    assert "given as chat messages, and this prompt is plain text" in refused.output
    plain = run("calibrate", "--prompts", prompts, "--coverage", 0.5, "--out", out, "--slots", 96, "--no-chat")
    assert Calibration.from_file(out).made_with["chat"] is False
    assert printed_command(plain)[-1] == "--no-chat"
