"""The one style: colours that are told apart, files that are the same every time."""

from itertools import combinations

import matplotlib as mpl
import pytest

mpl.use("Agg")

from lastword.errors import SettingError
from lastword.viz.figures import COLOURS, INK, SOFT, STYLE, check_picture, new_figure, save, styled


def channels(colour):
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_its_background():
    for colour in (INK, SOFT):
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5  # the contrast that WCAG asks of text


def test_colours_are_told_apart_without_red_or_green():
    """Viénot, Brettel and Mollon's matrix for a deuteranope, on linear values."""
    seen = []
    for colour in COLOURS:
        red, green, blue = (c**2.2 for c in channels(colour))
        yellow = 0.292 * red + 0.708 * green
        seen.append((yellow, yellow, -0.022 * red + 0.022 * green + blue))
    for one, other in combinations(seen, 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other)) ** 0.5 > 0.05


def test_style_is_known_to_matplotlib_and_ends_with_its_block():
    before = dict(mpl.rcParams)
    with styled():
        assert mpl.rcParams["axes.edgecolor"] == SOFT
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == [*COLOURS]
    assert dict(mpl.rcParams) == before
    assert set(STYLE) <= set(before)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_figure_is_the_same_file(tmp_path, ending):
    for name in ("one", "two"):
        with styled():
            figure = new_figure(3, 2)
            figure.add_subplot().plot([1, 2], [3, 1])
        save(figure, tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(SettingError, match="one that ends in"):
        check_picture(tmp_path / "a.txt")
