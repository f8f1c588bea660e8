"""Draw the figures of README and docs from records: `python -m benchmarks.figures [--measure]`.

Some figures have a JSON record in the same folder, which `--measure` measures again first. The others are drawn
from the kept records.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.arms import MODELS
from benchmarks.kept import PARTS, study, timed
from benchmarks.labels import label_lines
from benchmarks.pages import benched, widths_of
from benchmarks.paper.figures import FIGURES as OF_RECORDS, save_figures
from benchmarks.passes.record import PassRecord
from benchmarks.passes.work import Work
from benchmarks.race import draw_race, measure_race
from benchmarks.scale.picture import draw as draw_scale
from benchmarks.scale.record import read as read_scale
from benchmarks.timeline import draw_serving, measure_serving
from lastword.decoding.running_batch import ModelProbe
from lastword.evaluate.records import Record
from lastword.evaluate.tables import by_recipe
from lastword.models.layers import TransformerConfig
from lastword.policies.length.survival import Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, EndSignal, Hazard
from lastword.survival.plot import save_lengths
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.tasks.families import KnownLengths
from lastword.viz.figures import BLUE, COLOURS, GREEN, INK, ORANGE, new_figure, save, styled

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
MODEL = "tests/golden/llada-tiny-eos"  # trained for minutes to end like a chat model; no tokenizer
PROMPT = [94, 183, 254, 187, 5, 49, 312, 245, 285, 156, 318, 338]
LIMIT = 64
CURVE_PROMPTS, CURVE_STEP = 40, 4
PALETTE = 64  # number of colours of a figure
SIGNALS = {"tiny-llada-base": "packed documents", "tiny-llada-instruct": "padded answers"}


def measure_survival() -> dict[str, object]:
    """Return the record of the survival curve: one probe of a tiny checkpoint."""
    model = lastword.load(ROOT / MODEL, device="cpu")
    lengths = lastword.predict_length(model, PROMPT, limit=LIMIT, interpretation=Hazard())
    return {"model": MODEL, "prompt": PROMPT, "limit": LIMIT, "hazard": [round(h, 6) for h in lengths.hazard.tolist()]}


def draw_survival(record: Path) -> None:
    """Draw a survival curve and its horizon."""
    hazard = torch.tensor(json.loads(record.read_text())["hazard"], dtype=torch.float64)
    save_lengths(LengthDistribution.from_hazard(hazard), record.with_suffix(".png"))


def measure_interpretations() -> dict[str, object]:
    """Return the record of the interpretations: two models, and a prompt that names its length distribution."""
    example = next(e for e in load_frozen("test", "known_hazard") if "uniform" in e.target)
    signals = {}
    for name in SIGNALS:
        model: Any = lastword.load(name, device="cpu")
        message = {"role": "user", "content": example.prompt}
        chat = model.tokenizer.chat_template is not None
        prompt = model.tokenizer.chat([message]) if chat else model.tokenizer.encode(example.prompt)
        signal = Survival(256).signal(ModelProbe(model, [prompt])(256))
        signals[name] = {end: [round(p, 6) for p in getattr(signal, end)[0].tolist()] for end in ("document", "turn")}
    return {"prompt": example.prompt, "target": example.target, "signals": signals}


def draw_interpretations(record: Path) -> None:
    """Draw a column per model: its end-token probabilities above, their interpretations below."""
    kept = json.loads(record.read_text())
    named = KnownLengths.parse(kept["target"])
    density = torch.zeros(256, dtype=torch.float64)
    density[named.minimum : named.maximum + 1] = torch.tensor(named.probability)
    truth = LengthDistribution.from_density(density)
    figure = new_figure(9, 4.6)
    axes = figure.subplots(2, len(SIGNALS), sharex=True, squeeze=False)
    for column, (name, training) in enumerate(SIGNALS.items()):
        ends = {end: torch.tensor([values], dtype=torch.float64) for end, values in kept["signals"][name].items()}
        signal = EndSignal.from_probabilities(**ends)
        (choice,) = Auto().choose(signal)
        above, below = axes[:, column]
        slots = range(1, 257)
        above.plot(slots, signal.document[0], color=BLUE)
        lines = [("document end", BLUE)]
        if signal.turn.max() > 0.001:
            above.plot(slots, signal.turn[0], color=GREEN, linestyle="--")
            lines.append(("turn end (dashed)", GREEN))
        above.set(title=f"{name}: {training}", ylim=(0, None))
        label_lines(above, lines, top=0.98 if column == 0 else 0.6)
        curves = {
            "named by the prompt (dotted)": (truth, INK, ":"),
            "Hazard, the paper (dashed)": (Hazard()(signal).row(0), ORANGE, "--"),
            f"{type(choice.interpretation).__name__}, chosen by Auto": (
                choice.interpretation(signal).row(0),
                BLUE,
                "-",
            ),
        }
        labels = []
        for label, (lengths, colour, line) in curves.items():
            below.step(range(257), lengths.survival, where="post", color=colour, linestyle=line)
            labels.append((f"{label}: mean {lengths.mean:.0f}", colour))
        below.set(xlabel="slot k", xlim=(0, 256), ylim=(0, 1.02))
        label_lines(below, labels)
    axes[0, 0].set_ylabel("probability of an end token")
    axes[1, 0].set_ylabel("P(longer than k)")
    save(figure, record.with_suffix(".png"))


def measure_curves() -> dict[str, object]:
    """Return the record of the curves per family: the mean survival curve of the first prompts."""
    results: dict[str, dict[str, object]] = {}
    for name in MODELS:
        model: Any = lastword.load(name, device="cpu")
        chat = model.tokenizer.chat_template is not None
        results[name] = {}
        for family in BENCHMARKS:
            examples = load_frozen("test", family)[:CURVE_PROMPTS]
            prompts = [
                model.tokenizer.chat([{"role": "user", "content": e.prompt}])
                if chat
                else model.tokenizer.encode(e.prompt)
                for e in examples
            ]
            signal = Survival(256).signal(ModelProbe(model, prompts)(256))
            written = torch.tensor([len(model.tokenizer.encode(e.answer)) + 1 for e in examples])
            curves = {
                "product": Hazard()(signal).survival.mean(0),
                "auto": Auto()(signal).survival.mean(0),
                "reference": (written[:, None] > torch.arange(257)).double().mean(0),
            }
            results[name][family] = {
                which: [round(s, 4) for s in curve[::CURVE_STEP].tolist()] for which, curve in curves.items()
            }
    return {"prompts": CURVE_PROMPTS, "every": CURVE_STEP, "curves": results}


def draw_curves(record: Path) -> None:
    """Draw a panel per model and family."""
    kept = json.loads(record.read_text())
    figure = new_figure(10, 7)
    axes = figure.subplots(len(MODELS), len(BENCHMARKS), sharex=True, sharey=True)
    looks = {
        "reference": ("dotted: reference", INK, ":"),
        "product": ("dashed: the paper", ORANGE, "--"),
        "auto": ("solid: Auto", BLUE, "-"),
    }
    for row, (name, by_family) in zip(axes, kept["curves"].items()):
        row[0].set_ylabel(f"{name}\nP(longer than k)")
        for ax, curves in zip(row, by_family.values()):
            for which, (_, colour, line) in looks.items():
                slots = range(0, 257, kept["every"])
                ax.plot(slots, curves[which], color=colour, linestyle=line)
    for ax, family in zip(axes[0], BENCHMARKS):
        ax.set_title(family.replace("_", " "))
    label_lines(axes[0, 0], [(name, colour) for name, colour, _ in looks.values()])
    for ax in axes[-1]:
        ax.set_xlabel("slot k")
    save(figure, record.with_suffix(".png"))


def draw_widths(runs: dict[str, PassRecord], picture: Path) -> None:
    """Draw time and memory of a full forward pass by its width, compared with the arithmetic."""
    figure = new_figure(9, 3.6)
    time, memory = figure.subplots(1, 2)
    for colour, run in zip(COLOURS, runs.values()):
        lines = widths_of(run)
        tokens = [line.tokens_computed or 0.0 for line in lines]
        time.plot(tokens, [line.ms for line in lines], "o-", color=colour)
        time.plot(tokens, [_arithmetic_ms(run, count) for count in tokens], ":", color=colour)
        peaks = [line.peak_mb or 0.0 for line in lines]
        if all(peaks):
            memory.plot(tokens, peaks, "o-", color=colour)
            straight = [peaks[-1] * count / tokens[-1] for count in tokens]
            memory.plot(tokens, straight, ":", color=colour)
    time.set(xlabel="tokens computed", ylabel="ms per forward pass", xscale="log", yscale="log")
    memory.set(xlabel="tokens computed", ylabel="peak memory without weights, MB", xscale="log", yscale="log")
    names = [*zip(runs, COLOURS)]
    label_lines(time, [*names, ("dotted: arithmetic at the peak rate", INK)], right=0.65)
    label_lines(memory, [*names, ("dotted: proportional", INK)], right=0.65)
    save(figure, picture)


def _arithmetic_ms(run: PassRecord, tokens: float) -> float:
    """Return the time of a full forward pass at the rate of a large matrix product."""
    shape = {name: run.settings[f"shape_{name}"] for name in TransformerConfig.__dataclass_fields__}
    flops = Work(tokens, tokens**2, 0).flops(TransformerConfig(**shape))  # type: ignore[arg-type]
    return flops / run.ceilings.tflops / 1e9 if run.ceilings else 0.0


# Functions that measure and draw each figure with a record in the folder of figures.
RECORDED: dict[str, tuple[Callable[[], dict[str, object]], Callable[[Path], None]]] = {
    "survival": (measure_survival, draw_survival),
    "interpretations": (measure_interpretations, draw_interpretations),
    "curves": (measure_curves, draw_curves),
    "serving": (measure_serving, draw_serving),
    "race": (measure_race, draw_race),
}


DRAWN = (*RECORDED, "widths", "scale", *OF_RECORDS)  # other images are screenshots


def main() -> None:
    """Measure the records if requested, then draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure the records in the folder of figures again")
    options = parser.parse_args()
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, (measure, draw) in RECORDED.items():
        record = FIGURES / f"{name}.json"
        if options.measure or not record.is_file():
            record.write_text(json.dumps(measure()) + "\n")
        with styled():
            draw(record)
    wide = {name: run for name, run in benched().items() if widths_of(run)}
    with styled():
        if wide:
            draw_widths(wide, FIGURES / "widths.png")
        draw_scale(read_scale(), FIGURES / "scale.png")
    save_figures(every_arm(), FIGURES, ("png",))
    for drawn in sorted(path for name in DRAWN for path in FIGURES.glob(f"{name}.[pg][ni][gf]")):
        if drawn.suffix == ".png":
            shrink(drawn)
        print(f"drew {drawn.relative_to(ROOT)}")


def every_arm() -> list[Record]:
    """Return the records of the study, and those of the parts whose recipes the study lacks."""
    known = by_recipe(study())
    parts = by_recipe(timed(PARTS))
    return study() + [record for recipe, arm in parts.items() if recipe not in known for record in arm]


def shrink(picture: Path) -> None:
    """Reduce the number of colours of an image, which saves two thirds of its bytes."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(PALETTE).save(picture, optimize=True)


if __name__ == "__main__":
    main()
