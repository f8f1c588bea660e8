"""The models that come with the package: they load, they know their tasks, their cards are true."""

from pathlib import Path

import pytest

import lastword
from benchmarks.catalogue import parameters
from lastword.embedded import EMBEDDED, FOLDER
from lastword.tasks import FAMILIES, load_frozen
from training import card
from training.history import shipped_log
from training.settings import read


@pytest.fixture(scope="module", params=EMBEDDED)
def embedded(request):
    return request.param, lastword.load(request.param, device="cpu")


def test_every_folder_is_named_and_every_name_has_a_folder():
    assert tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json"))) == EMBEDDED


def test_files_are_small():
    assert all(path.stat().st_size <= 12e6 for path in FOLDER.rglob("*"))


def test_it_is_the_size_and_family_its_name_says(embedded):
    name, model = embedded
    numbers = sum(p.numel() for p in model.parameters())
    assert 4.5e6 < numbers < 6e6
    assert parameters(FOLDER / name / "model.safetensors") == numbers
    assert model.architecture.name.lower() == name.split("-")[1]
    assert (model.tokenizer.chat_template is not None) == name.endswith("instruct")
    assert bool(model.ids.turn_ends)
    assert model.single_turn


@pytest.mark.full
def test_it_solves_held_out_problems(embedded):
    """A sample small enough for every run; the card has the whole."""
    name, model = embedded
    examples = [e for e in load_frozen("validation", "algebra") if "Be brief." in e.prompt][:4]
    prompts = [[{"role": "user", "content": e.prompt}] if name.endswith("instruct") else e.prompt for e in examples]
    answers = lastword.generate(model, prompts, length=lastword.Fixed(64), unmask="most-confident:2")
    right = [FAMILIES["algebra"].score(e, a.text) for e, a in zip(examples, answers)]
    assert sum(right) >= 2


def test_it_predicts_longer_answers_where_the_prompt_asks_for_them(embedded):
    name, model = embedded
    question = "Problem: Solve for n: 4n + 3 = 35.{}\nSolution:\n"
    prompts = [question.format(f" {manner}") for manner in ("Be brief.", "Explain every step.")]
    if name.endswith("instruct"):
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    brief, long = lastword.predict_length(model, prompts, limit=256).mean.tolist()
    assert brief + 8 < long < 256


@pytest.mark.full  # it reads every kept record of a model
@pytest.mark.parametrize("name", EMBEDDED)
def test_the_card_says_what_log_and_records_say(name):
    settings = read(Path(card.__file__).parent / f"{name}.toml")
    text = card.card(name, settings, shipped_log(name), card.accuracy(name), card.prompts_per_family(name))
    assert (FOLDER / name / "README.md").read_text() == text


def test_a_resumed_run_adds_up_its_parts():
    log = [
        {"step": 1, "seconds": 5.0, "validation_loss": 2.0},
        {"step": 2, "seconds": 9.0, "validation_loss": 1.5},
        {"step": 3, "seconds": 4.0, "validation_loss": 1.0},
    ]
    assert card.training(log).startswith("3 steps in 13 s")
    assert "resumed at step 2 with a longer schedule; last validation loss 1.000" in card.training(log)
