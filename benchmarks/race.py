"""The animation of a predicted and a fixed canvas: `python -m benchmarks.race [--measure]`.

The record is a run of an embedded model. Both canvases advance by the same number of forward passes per frame.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import lastword
from lastword.api import Generation
from lastword.io.files import write
from lastword.recipe.recipe import Recipe
from lastword.tasks import FAMILIES, Example, load_frozen
from lastword.viz.figures import BLUE, INK, ORANGE, SOFT, new_figure, styled
from lastword.viz.replay import run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

RECORD = Path(__file__).parent.parent / "docs" / "figures" / "race.json"
MODEL, FAMILY, INDEX = "tiny-llada-instruct", "algebra", 15  # index of the validation prompt
SLOTS = 256
TITLES = {"predicted": "lastword: a canvas of the predicted length", "fixed": "a fixed canvas of {slots} slots"}

PIXELS, DPI = (800, 430), 100
STEP, FRAME_MS = 3, 100  # forward passes and duration of a frame
FIRST_MS, LAST_MS, SHRINKS = 1500, 3500, 8
LEFT, WIDTH, STRIP = 0.04, 0.92, 0.06  # position and size of a strip, as shares of the image
LANES = {"predicted": 0.50, "fixed": 0.20}  # bottoms of the strips
MASK, END, WORD, NEW = "#D3D7DA", "#8B949B", BLUE, ORANGE  # colours of slots
KINDS = {WORD: "words", NEW: "new tokens", END: "end tokens", MASK: "masks"}
SHADES = 8  # of every colour
RENAMED = {
    "passes": "forward_passes",
    "columns": "tokens_computed",
    "probe_passes": "probe_forward_passes",
    "probe_columns": "probe_tokens_computed",
}  # names of fields in older records


def read_record(path: Path) -> dict[str, Any]:
    """Return a record of the race; old names of fields are replaced."""
    return json.loads(path.read_text(), object_hook=lambda data: {RENAMED.get(key, key): data[key] for key in data})


def example() -> Example:
    """Return the prompt: a validation prompt with a short answer that is correct on both canvases."""
    return load_frozen("validation", FAMILY)[INDEX]


def measure_race() -> dict[str, object]:
    """Return the record: frames, survival curve and cost of both runs."""
    prompt = example()
    model: Any = lastword.load(MODEL, device="cpu")
    message = [{"role": "user", "content": prompt.prompt}]
    recipes = {"predicted": Recipe(), "fixed": Recipe(length=lastword.Fixed(SLOTS))}
    runs = {}
    for name, recipe in recipes.items():
        answer = lastword.generate(model, message, recipe=recipe, frames=True)
        if not FAMILIES[FAMILY].score(prompt, answer.text or ""):
            raise SystemExit(f"the answer on the {name} canvas is wrong ({answer.text!r}); choose another prompt")
        runs[name] = _kept(answer)
    return {"model": MODEL, "prompt": prompt.prompt, "slots": SLOTS, "runs": runs}


def _kept(answer: Generation) -> dict[str, Any]:
    """Return the fields of a run that are drawn; they do not depend on the machine."""
    details = {**answer.to_data(), "finish": answer.finish.value, "prompt": answer.prompt_text, "seconds": 0.0}
    assert answer.frames is not None
    kept = run(answer.frames, answer.lengths, details)
    for frame in kept["frames"]:
        frame["set"] = [[slot, text] for slot, text, *_ in frame["set"]]
    return {name: kept[name] for name in ("text", "horizon", "end", "lengths", "ledger", "frames")}


@dataclass(frozen=True)
class Moment:
    """A canvas after some forward passes."""

    texts: tuple[str | None, ...]  # of each slot; None: a mask, empty: an end token
    forward_passes: int
    tokens_computed: int
    done: bool


class Lane:
    """A run: the canvas after every forward pass, the probe included."""

    def __init__(self, kept: dict[str, Any], slots: int) -> None:
        ledger = kept["ledger"]
        self.horizon, self.text = kept["horizon"], kept["text"]
        self.written = kept["end"] or len(self.text)
        self.probed = (ledger["probe_forward_passes"], ledger["probe_tokens_computed"])
        self.blank = Moment((None,) * slots, *self.probed, done=False)
        self.moments = [*self._moments(kept["frames"])]

    def _moments(self, frames: Sequence[dict[str, Any]]) -> Iterator[Moment]:
        texts = list[str | None]()
        passes, tokens = self.probed
        for frame in frames:
            slots = frame["slots"]
            texts = [*texts, *[None] * slots][:slots]
            for slot, text in frame["set"]:
                texts[slot] = text
            cost = (frame["forward_passes"] + passes, frame["tokens_computed"] + tokens)
            yield Moment(tuple(texts), *cost, done=frame is frames[-1])

    def at(self, passes: int) -> Moment:
        """Return the canvas after some forward passes; a finished canvas does not change."""
        return self.moments[min(passes, len(self.moments) - 1)]

    def text_at(self, moment: Moment) -> str:
        """Return the text of the answer, with a dot for every mask."""
        texts = moment.texts[: self.written]
        return "".join("\N{MIDDLE DOT}" if text is None else text for text in texts)


def moments(kept: dict[str, Any], step: int = STEP) -> Iterator[tuple[int, dict[str, Moment]]]:
    """Yield each frame with its milliseconds: blank canvases, the shortening of one, then the forward passes."""
    lanes = {name: Lane(run, kept["slots"]) for name, run in kept["runs"].items()}
    blank = {name: lane.blank for name, lane in lanes.items()}
    yield FIRST_MS, blank
    slots, horizon = kept["slots"], lanes["predicted"].horizon
    for shrink in range(1, SHRINKS):
        left = slots - (slots - horizon) * shrink // SHRINKS
        cut = Moment((None,) * left, *lanes["predicted"].probed, done=False)
        yield FRAME_MS, {**blank, "predicted": cut}
    last = max(len(lane.moments) for lane in lanes.values()) - 1
    for passes in range(0, last, step):
        yield FRAME_MS, {name: lane.at(passes) for name, lane in lanes.items()}
    yield LAST_MS, {name: lane.at(last) for name, lane in lanes.items()}


def draw_race(record: Path) -> None:
    """Draw the animation of a record and write it to the folder of the record."""
    kept = read_record(record)
    with styled():
        drawn = [*_draw_frames(kept)]
    images, content = [image for _, image in drawn], BytesIO()
    images[0].save(
        content, "GIF", save_all=True, append_images=images[1:], loop=0, optimize=False,
        duration=[milliseconds for milliseconds, _ in drawn],
    )  # fmt: skip
    write(record.with_suffix(".gif"), content.getvalue())


def _draw_frames(kept: dict[str, Any]) -> Iterator[tuple[int, Image]]:
    """Yield the duration and the image of each frame."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = new_figure(PIXELS[0] / DPI, PIXELS[1] / DPI)
    figure.set_dpi(DPI)
    canvas: Any = FigureCanvasAgg(figure)
    stage = Stage(figure, kept)
    for milliseconds, now in moments(kept):
        stage.show(now)
        canvas.draw()
        image = Image.frombuffer("RGBA", PIXELS, canvas.buffer_rgba()).convert("RGB")
        yield milliseconds, image.quantize(palette=_palette(), dither=Image.Dither.NONE)


def _palette() -> Image:
    """Return a palette with shades of the colours; few colours keep the file small."""
    from matplotlib.colors import to_rgb
    from PIL.Image import new

    shades = [
        round(255 * (1 - (1 - part) * shade / SHADES))
        for colour in (INK, SOFT, BLUE, ORANGE)
        for shade in range(SHADES + 1)
        for part in to_rgb(colour)
    ]
    shades += [round(255 * part) for colour in (MASK, END) for part in to_rgb(colour)]
    palette = new("P", (1, 1))
    palette.putpalette(shades)
    return palette


class Stage:
    """The image: the prompt, the survival curve, and below it the two canvases with aligned slots."""

    def __init__(self, figure: Any, kept: dict[str, Any]) -> None:
        figure.set_layout_engine("none")
        self._figure, self._slots = figure, kept["slots"]
        self._lanes = {name: Lane(run, kept["slots"]) for name, run in kept["runs"].items()}
        self._before: dict[str, Moment] = {}
        question = "\n".join(wrap(" ".join(kept["prompt"].split()), 100)[:2])
        self._write(0.965, question, size=11, va="top")
        self._write(0.02, f"{kept['model']}, one token per forward pass", SOFT, 8.5)
        self._saved = self._write(0.42, "", BLUE, 12.5, LEFT + WIDTH, ha="right", weight="bold")
        for place, (colour, name) in enumerate(KINDS.items()):
            at = 0.48 + 0.125 * place
            self._write(0.02, "\N{BLACK SQUARE}", colour, 11, at)
            self._write(0.02, name, SOFT, 8.5, at + 0.021)
        self._curve(kept["runs"]["predicted"])
        self._strips, self._counts, self._texts = {}, {}, {}
        for name, bottom in LANES.items():
            ax = self._axis(bottom, STRIP)
            ax.set_axis_off()
            self._strips[name] = ax.imshow(
                [[(1.0, 1.0, 1.0)] * self._slots], extent=(0, self._slots, 0, 1), aspect="auto",
                interpolation="nearest",
            )  # fmt: skip
            above = bottom + STRIP + 0.015
            self._write(above, TITLES[name].format(slots=self._slots), size=10.5, weight="bold")
            self._counts[name] = self._write(above, "", size=10.5, at=LEFT + WIDTH, ha="right")
            self._texts[name] = self._write(bottom - 0.02, "", size=9, family="DejaVu Sans Mono", va="top")

    def _write(
        self, height: float, text: str, colour: str = INK, size: float = 9, at: float = LEFT, **more: Any
    ) -> Any:
        return self._figure.text(at, height, text, color=colour, fontsize=size, **more)

    def _axis(self, bottom: float, height: float) -> Axes:
        ax = self._figure.add_axes((LEFT, bottom, WIDTH, height))
        ax.set(xlim=(0, self._slots), ylim=(0, 1))
        ax.grid(visible=False)
        return ax

    def _curve(self, kept: dict[str, Any]) -> None:
        """Draw the survival curve above the strips; the vertical line is the planned length."""
        ax = self._axis(0.68, 0.17)
        survival, horizon = kept["lengths"]["survival"], kept["horizon"]
        ax.fill_between(range(len(survival)), survival, step="post", color=BLUE, alpha=0.2, linewidth=0)
        ax.step(range(len(survival)), survival, where="post", color=BLUE)
        ax.plot((horizon, horizon), (0, 1), "--", color=ORANGE)
        ax.text(horizon + 2, 0.45, f"{horizon} slots planned", color=ORANGE, fontsize=10.5)
        ax.set(xticks=(0, self._slots), yticks=(), xticklabels=("", f"{self._slots} slots"))
        ax.get_xticklabels()[-1].set_horizontalalignment("right")
        ax.spines["left"].set_visible(False)
        caption = "one forward pass over the blank canvas:\nprobability that the answer is longer than k slots"
        ax.text(self._slots, 1, caption, ha="right", va="top", fontsize=10)

    def show(self, now: dict[str, Moment]) -> None:
        """Draw the current canvases and highlight the tokens written since the last frame."""
        from matplotlib.colors import to_rgb

        for name, moment in now.items():
            before = self._before[name].texts if name in self._before else ()
            row = [to_rgb("white")] * self._slots
            for slot, text in enumerate(moment.texts):
                new = slot < len(before) and before[slot] is None and text is not None
                kind = MASK if text is None else WORD if text else END
                row[slot] = to_rgb(NEW if new and not moment.done else kind)
            self._strips[name].set_data([row])
            mark = "done: " if moment.done else ""
            passes = "1 forward pass" if moment.forward_passes == 1 else f"{moment.forward_passes} forward passes"
            self._counts[name].set_text(f"{mark}{passes}, {moment.tokens_computed:,} tokens computed")
            self._counts[name].set_color(BLUE if moment.done else INK)
            self._texts[name].set_text("\n".join(self._wrapped(self._lanes[name].text_at(moment))))
            self._before[name] = moment
        if all(moment.done for moment in now.values()):
            share = now["predicted"].tokens_computed / now["fixed"].tokens_computed
            same = len({lane.text for lane in self._lanes.values()}) == 1
            answer = "the same answer" if same else "a correct answer"
            self._saved.set_text(f"{answer} for {share:.0%} of the tokens computed")

    def _wrapped(self, text: str) -> list[str]:
        lines = [part for line in text.splitlines() for part in wrap(line, 112) or [""]]
        return lines[:3]


def main() -> None:
    """Measure the record if necessary, then draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure the record again")
    if parser.parse_args().measure or not RECORD.is_file():
        RECORD.write_text(json.dumps(measure_race()) + "\n")
    draw_race(RECORD)
    print(f"drew {RECORD.with_suffix('.gif').name}: {RECORD.with_suffix('.gif').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
