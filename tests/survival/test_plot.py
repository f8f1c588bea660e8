from __future__ import annotations

import builtins

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pytest
import torch

from lastword.errors import ExtraError, SettingError
from lastword.survival.distribution import LengthDistribution, Quantile
from lastword.survival.plot import save_lengths, save_rows


@pytest.fixture
def rows():
    return LengthDistribution.from_hazard(torch.tensor([[0.5, 0.25, 0.2], [0.0, 0.0, 1.0]]))


@pytest.fixture
def lengths(rows):
    return rows.row(0)


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def names(ax):
    return {text.get_text() for text in ax.texts}


def test_takes_an_axis_and_returns_it(lengths, ax):
    assert lengths.plot(ax) is ax


def test_makes_an_axis_where_none_is_given_and_leaves_the_user_s_style(lengths):
    before = dict(mpl.rcParams)
    made = lengths.plot()
    assert made.get_lines()
    assert dict(mpl.rcParams) == before
    plt.close(made.figure)


def test_draws_survival_and_horizon_with_their_names(lengths, ax):
    lengths.plot(ax)
    survival, horizon = ax.get_lines()
    assert survival.get_ydata() == pytest.approx([1, 0.5, 0.375, 0.3])
    assert list(horizon.get_xdata()) == [2, 2]  # the mean, 1.875, rounded up
    assert names(ax) == {"canvas 2 (dashed)"}
    assert ax.get_title() == "expected length 1.9, 30.0% beyond 3 slots"


def test_marks_the_horizon_and_the_true_length_that_are_given(rows, ax):
    rows.row(1).plot(ax, horizon=1, truth=2.0)
    _, horizon, truth = ax.get_lines()
    assert (horizon.get_xdata()[0], truth.get_xdata()[0]) == (1, 2)
    assert names(ax) == {"canvas 1 (dashed)", "true length 2 (dotted)"}
    rows.row(1).plot(ax, horizon=Quantile(0.5)(rows.row(1)))
    assert "canvas 3 (dashed)" in names(ax)


def test_several_rows_are_refused_with_what_to_write(rows):
    with pytest.raises(SettingError, match=r"lengths\.row\(0\)\.plot\(\)"):
        rows.plot()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_save_writes_the_format_of_the_ending(lengths, tmp_path, ending):
    path = tmp_path / f"curve.{ending}"
    save_lengths(lengths, str(path))
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_rows_are_drawn_below_one_another_with_the_lengths_that_came(rows, tmp_path):
    save_rows(rows, ["short", "long"], tmp_path / "rows.svg", truths=[2, None])
    drawn = (tmp_path / "rows.svg").read_text()
    for said in ("short: expected length 1.9", "long: expected length 3.0", "true length 2"):
        assert drawn.count(f"<!-- {said}") == 1
    with pytest.raises(SettingError, match="1 truths were given for 2 rows"):
        save_rows(rows, ["short", "long"], tmp_path / "rows.svg", truths=[2])


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
        lengths.plot()
