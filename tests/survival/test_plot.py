from __future__ import annotations

import builtins

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pytest
import torch

from lastword.errors import ExtraError, LastwordError
from lastword.survival import LengthDistribution, Quantile, plot_lengths, save_lengths


@pytest.fixture
def lengths():
    return LengthDistribution.from_hazard(torch.tensor([[0.5, 0.25, 0.2], [0.0, 0.0, 1.0]]))


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_takes_an_axis_and_returns_it(lengths, ax):
    assert plot_lengths(lengths, ax=ax) is ax


def test_draws_survival_hazard_and_horizon(lengths, ax):
    plot_lengths(lengths, ax=ax)
    survival, hazard, horizon = ax.get_lines()
    assert survival.get_ydata() == pytest.approx([1, 0.5, 0.375, 0.3])
    assert list(hazard.get_ydata()) == pytest.approx([0.5, 0.25, 0.2])
    assert list(horizon.get_xdata()) == [2, 2]  # the mean, 1.875, rounded up
    assert {"survival S(k)", "hazard h(k)", "horizon 2"} == set(legend(ax))
    assert "1.9" in ax.get_title()
    assert "0.300" in ax.get_title()


def test_draws_the_row_and_the_estimate_asked_for(lengths, ax):
    plot_lengths(lengths, row=1, estimate=Quantile(0.5), ax=ax)
    assert list(ax.get_lines()[2].get_xdata()) == [3, 3]


def test_marks_the_true_length_only_when_it_is_given(lengths, ax):
    plot_lengths(lengths, ax=ax)
    assert not any("true length" in text for text in legend(ax))
    plot_lengths(lengths, truth=2.0, ax=ax)
    assert "true length 2" in legend(ax)


def test_row_that_is_not_there_is_refused(lengths, ax):
    with pytest.raises((IndexError, LastwordError)):
        plot_lengths(lengths, row=5, ax=ax)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_save_writes_the_format_of_the_ending(lengths, tmp_path, ending):
    path = tmp_path / f"curve.{ending}"
    save_lengths(lengths, path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_save_leaves_no_figure_open(lengths, tmp_path):
    before = plt.get_fignums()
    save_lengths(lengths, tmp_path / "curve.png")
    assert plt.get_fignums() == before


def test_without_matplotlib_the_error_says_what_to_install(lengths, monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *rest, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(ExtraError, match=r"pip install .*\[plot\]'"):
        plot_lengths(lengths)
