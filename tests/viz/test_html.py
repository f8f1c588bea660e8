"""What notebooks show: it says what the object says, in any colours, and nothing in it is code."""

import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import pytest
import torch

import lastword
from lastword import LengthDistribution, Recipe
from lastword.api import Generation
from lastword.viz.figures import COLOURS

SCRIPT = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The elements and the text of a piece of HTML; whatever is opened must be closed."""

    EMPTY = ("path", "line")

    def __init__(self, html):
        super().__init__()
        self.names, self.text, self.titles, self._open = [], "", [], []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.titles += [value for name, value in attributes if name == "title"]
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def toy():
    return lastword.load("toy")


def lengths_of(*rows):
    return LengthDistribution.from_hazard(torch.tensor(rows, dtype=torch.float64))


def test_lengths_of_one_prompt_are_a_curve_with_mean_and_quantiles():
    shown = lengths_of(*[0.25] * 40)._repr_html_()
    page = Page(shown)
    assert page.names.count("svg") == 1
    assert "mean 4.0" in page.text
    for said in ("expected length", "4.0 slots", "50% within", "90% within", "0.0%"):
        assert said in page.text
    (path,) = re.findall(r'<path d="([^"]*)" fill="none" stroke="#', shown)
    levels = [float(v) for v in re.findall(r"V([\d.]+)", path)]
    assert levels[:2] == pytest.approx([130 * 0.25, 130 * (1 - 0.75**2)], abs=0.1)
    assert levels == sorted(levels)


def test_a_tail_that_holds_a_quantile_is_said():
    assert "not 3" in Page(lengths_of(0.1, 0.1, 0.1)._repr_html_()).text


def test_a_batch_is_a_line_a_prompt_and_a_large_one_is_cut():
    shown = Page(lengths_of(*[[0.5, 0.5, 1.0]] * 15)._repr_html_())
    assert shown.names.count("svg") == 12
    assert "and 3 prompts more" in shown.text
    assert Page(LengthDistribution(torch.ones(0, 3))._repr_html_()).names.count("svg") == 0


def test_text_takes_the_page_s_colour():
    """A colour of its own would be unreadable in light or in dark; drawings have those of the style."""
    answer = lastword.generate("toy", "abc", length="fixed:3", frames=True)
    for shown in (lengths_of(0.5, 0.5), lengths_of([0.5]), answer, Recipe()):
        html = shown._repr_html_()
        assert set(re.findall(r"#[0-9A-Fa-f]{6}\b", html)) <= set(COLOURS)
        assert not re.search(r"[^-]color:(?!inherit)", html)


def test_an_answer_is_coloured_by_the_pass_that_fixed_it(toy):
    answer = lastword.generate(toy, "abc", length="fixed:5", frames=True)
    page = Page(answer._repr_html_())
    fixed = answer.frames[-1].filled_at
    assert sorted(fixed) == [1, 2, 3, 4, 5]
    assert page.titles == [f"filled by pass {n}" for n in fixed]
    assert "defgh" in page.text
    strengths = [float(a) for a in re.findall(r"0,114,178,([\d.]+)\)", answer._repr_html_())]
    by_pass = [strength for _, strength in sorted(zip(fixed, strengths))]
    assert by_pass == sorted(by_pass, reverse=True)
    assert by_pass[0] > by_pass[-1] > 0


def test_an_answer_without_frames_is_its_text_and_ledger(toy):
    answer = lastword.generate(toy, "abc", length="survival:20")
    page = Page(answer._repr_html_())
    assert page.titles == []
    passes = answer.cost.forward_passes + answer.probe_cost.forward_passes
    for said in (
        answer.text,
        f"{answer.horizon} slots",
        f"{answer.cost.tokens_computed:,} + {answer.probe_cost.tokens_computed:,} to probe",
        f"{len(answer.tokens) / passes:.2f}",
        f"{answer.lengths.mean:.1f}",
        answer.finish.value,
    ):
        assert said in page.text


def test_what_stands_behind_the_end_is_not_shown(toy):
    answer = lastword.generate(toy, "abc", length="fixed:5", frames=True)
    ended = replace(answer, frames=(replace(answer.frames[-1], end=2),))
    assert len(Page(ended._repr_html_()).titles) == 2


@dataclass(frozen=True)
class Mine(lastword.LengthPolicy):
    __doc__ = SCRIPT
    note: str = SCRIPT

    def plan(self, probe):
        raise NotImplementedError


def test_whatever_a_model_or_a_user_wrote_is_text(toy):
    answer = lastword.generate(toy, "abc", length="fixed:3", frames=True)
    frame = replace(answer.frames[-1], texts=(SCRIPT, "<b>", '"'))
    read_as = LengthDistribution(torch.ones(3), SCRIPT)
    shown = [
        replace(answer, text=SCRIPT, frames=None),
        replace(answer, frames=(frame,)),
        read_as,
        Recipe(length=Mine()),
    ]
    for own in shown:
        page = Page(own._repr_html_())
        assert "script" not in page.names
        assert "b" not in page.names
        assert SCRIPT in page.text


def test_a_recipe_says_every_choice_in_words_and_by_name():
    page = Page(Recipe.named("fast")._repr_html_())
    for said in ("length", "unmask", "commit", "cache", "sampling", "block", "threshold:0.97"):
        assert said in page.text
    for part in ("StopAtEnd: ", "GrowWhenFull: ", "Survival: ", "Auto: ", "AboveThreshold: "):
        assert part in page.text
    assert "Slots per block" in Page(Recipe(block=16)._repr_html_()).text


@pytest.mark.parametrize(
    "shown",
    [
        lengths_of(*[0.01] * 1024),
        lengths_of(*[[0.01] * 1024] * 300),
        Recipe(),
        lastword.generate("toy", "abc" * 50, length="survival:64"),
    ],
    ids=["lengths", "rows", "recipe", "answer"],
)
def test_as_text_it_fits_a_line(shown):
    assert "\n" not in str(shown)
    assert "tensor" not in str(shown)
    assert len(str(shown)) <= 100


def test_an_answer_as_text_says_what_it_is():
    answer = lastword.generate("toy", "abc", length="fixed:5")
    assert isinstance(answer, Generation)
    assert repr(answer) == "Generation('defgh', 5 tokens, 5 passes, truncated)"
    assert str(Recipe.named("paper")) == "survival"
