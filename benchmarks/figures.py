"""Draw every figure of README and docs from its record: `python -m benchmarks.figures [--measure]`.

A figure is a picture of a JSON record beside it, which `--measure` makes anew first, or of the study's.
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
from benchmarks.pages import benched, widths_of
from benchmarks.scale.picture import draw as draw_scale
from benchmarks.scale.record import read as read_scale
from benchmarks.timeline import draw_serving, measure_serving
from lastword.bench.record import Record as BenchRecord
from lastword.bench.work import Work
from lastword.eval.records import Record
from lastword.length import Survival
from lastword.models.layers import Shape
from lastword.paper.figures import save_figures
from lastword.paper.pairing import by_recipe
from lastword.passes.probe import ModelProbe
from lastword.survival import Auto, EndSignal, Hazard, LengthDistribution, save_lengths
from lastword.survival.plot import save
from lastword.tasks import BENCHMARKS, Lengths, load_frozen

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
MODEL = "tests/golden/llada-tiny-eos"  # trained for minutes to end like a chat model; no tokenizer
PROMPT = [94, 183, 254, 187, 5, 49, 312, 245, 285, 156, 318, 338]
LIMIT = 64
CURVE_PROMPTS, CURVE_STEP = 40, 4
COLOURS = 64
READ = {"tiny-llada-base": "packed documents", "tiny-llada-instruct": "padded answers"}


def measure_survival() -> dict[str, object]:
    """The record behind the survival curve: one probe of a tiny checkpoint."""
    model = lastword.load(ROOT / MODEL, device="cpu")
    lengths = lastword.predict_length(model, PROMPT, limit=LIMIT, reading=Hazard())
    return {
        "model": MODEL,
        "prompt": PROMPT,
        "limit": LIMIT,
        "hazard": [round(h, 6) for h in lengths.hazard[0].tolist()],
    }


def draw_survival(record: Path) -> None:
    """The first picture a reader sees: a survival curve meeting its horizon."""
    hazard = torch.tensor([json.loads(record.read_text())["hazard"]], dtype=torch.float64)
    save_lengths(LengthDistribution.from_hazard(hazard), record.with_suffix(".png"))


def measure_readings() -> dict[str, object]:
    """The record behind the readings: one prompt that names its own length distribution, two models."""
    example = next(e for e in load_frozen("test", "known_hazard") if "uniform" in e.target)
    signals = {}
    for name in READ:
        model: Any = lastword.load(name, device="cpu")
        message = {"role": "user", "content": example.prompt}
        chat = model.tokenizer.chat_template is not None
        prompt = model.tokenizer.chat([message]) if chat else model.tokenizer.encode(example.prompt)
        signal = Survival(256).signal(ModelProbe(model, [prompt])(256))
        signals[name] = {
            end: [round(p, 6) for p in getattr(signal, end)[0].tolist()]
            for end in ("document", "turn")
        }
    return {"prompt": example.prompt, "target": example.target, "signals": signals}


def draw_readings(record: Path) -> None:
    """One signal a column: what the model says above, what the readings make of it below."""
    import matplotlib.figure

    kept = json.loads(record.read_text())
    named = Lengths.parse(kept["target"])
    density = torch.zeros(1, 256, dtype=torch.float64)
    density[0, named.first : named.last + 1] = torch.tensor(named.probability)
    truth = LengthDistribution.from_density(density)
    figure = matplotlib.figure.Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots(2, len(READ), sharex=True, squeeze=False)
    for column, (name, training) in enumerate(READ.items()):
        ends = {
            end: torch.tensor([values], dtype=torch.float64)
            for end, values in kept["signals"][name].items()
        }
        signal = EndSignal.of(**ends)
        (choice,) = Auto().choose(signal)
        above, below = axes[:, column]
        slots = range(1, 257)
        above.plot(slots, signal.document[0], color="tab:orange", label="document end")
        if signal.turn.max() > 0.001:
            above.plot(slots, signal.turn[0], color="tab:green", label="turn end")
        above.set(title=f"{name}: {training}", ylim=(0, None))
        above.legend(loc="upper right" if column == 0 else "center right")
        curves = {
            "the prompt's own": (truth, "black", ":"),
            "Hazard, the paper": (Hazard()(signal), "tab:red", "-"),
            f"{type(choice.reading).__name__}, picked by Auto": (
                choice.reading(signal),
                "tab:blue",
                "-",
            ),
        }
        for label, (lengths, colour, line) in curves.items():
            shown = f"{label}: mean {lengths.mean.item():.0f}"
            below.step(
                range(257),
                lengths.survival[0],
                where="post",
                color=colour,
                linestyle=line,
                label=shown,
            )
        below.set(xlabel="slot k", xlim=(0, 256), ylim=(0, 1.02))
        below.legend(loc="upper right", fontsize="small")
    axes[0, 0].set_ylabel("probability of an end")
    axes[1, 0].set_ylabel("survival P(L > k)")
    figure.savefig(record.with_suffix(".png"), dpi=150)


def measure_curves() -> dict[str, object]:
    """The record behind the curves per family: survival averaged over the first prompts of each."""
    found: dict[str, dict[str, object]] = {}
    for name in MODELS:
        model: Any = lastword.load(name, device="cpu")
        chat = model.tokenizer.chat_template is not None
        found[name] = {}
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
            found[name][family] = {
                which: [round(s, 4) for s in curve[::CURVE_STEP].tolist()]
                for which, curve in curves.items()
            }
    return {"prompts": CURVE_PROMPTS, "every": CURVE_STEP, "curves": found}


def draw_curves(record: Path) -> None:
    """A panel a model and family."""
    import matplotlib.figure

    kept = json.loads(record.read_text())
    figure = matplotlib.figure.Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(len(MODELS), len(BENCHMARKS), sharex=True, sharey=True)
    looks = {"reference": ("black", ":"), "product": ("tab:red", "-"), "auto": ("tab:blue", "-")}
    names = {
        "reference": "reference answers",
        "product": "the paper's product",
        "auto": "Auto, same probe",
    }
    for row, (name, by_family) in zip(axes, kept["curves"].items()):
        for ax, (family, curves) in zip(row, by_family.items()):
            for which, (colour, line) in looks.items():
                slots = range(0, 257, kept["every"])
                ax.plot(slots, curves[which], color=colour, linestyle=line, label=names[which])
            ax.set_title(f"{name.removeprefix('tiny-')}: {family}", fontsize="small")
    for ax in axes[-1]:
        ax.set_xlabel("slot k")
    for ax in axes[:, 0]:
        ax.set_ylabel("P(L > k)")
    axes[0, 0].legend(fontsize="x-small")
    save(figure, record.with_suffix(".png"))


def draw_widths(runs: dict[str, BenchRecord], picture: Path) -> None:
    """Time and memory of a full pass as it widens, beside what arithmetic says."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(9, 3.6), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for colour, (name, run) in zip(
        ("tab:blue", "tab:orange", "tab:green", "tab:red"), runs.items()
    ):
        lines = widths_of(run)
        columns = [line.columns or 0.0 for line in lines]
        time.plot(columns, [line.ms for line in lines], "o-", color=colour, label=name)
        least = [_least_ms(run, count) for count in columns]
        time.plot(columns, least, ":", color=colour, label=f"{name}: arithmetic at the ceiling")
        peaks = [line.peak_mb or 0.0 for line in lines]
        if all(peaks):
            memory.plot(columns, peaks, "o-", color=colour, label=name)
            straight = [peaks[-1] * count / columns[-1] for count in columns]
            memory.plot(columns, straight, ":", color=colour, label=f"{name}: in proportion")
    time.set(xlabel="columns", ylabel="ms a pass", xscale="log", yscale="log")
    memory.set(xlabel="columns", ylabel="peak above the weights, MB", xscale="log", yscale="log")
    for ax in (time, memory) if memory.lines else (time,):
        ax.legend(fontsize="x-small")
    save(figure, picture)


def _least_ms(run: BenchRecord, columns: float) -> float:
    """A full pass at the rate of a large matrix product: linear and quadratic terms."""
    told = {name: run.settings[f"shape_{name}"] for name in Shape.__dataclass_fields__}
    flops = Work(columns, columns**2, 0).flops(Shape(**told))  # type: ignore[arg-type]
    return flops / run.ceilings.tflops / 1e9 if run.ceilings else 0.0


# Name of a record -> how it is measured and drawn.
RECORDED: dict[str, tuple[Callable[[], dict[str, object]], Callable[[Path], None]]] = {
    "survival": (measure_survival, draw_survival),
    "readings": (measure_readings, draw_readings),
    "curves": (measure_curves, draw_curves),
    "serving": (measure_serving, draw_serving),
}


def main() -> None:
    """Measure if asked, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="make the records anew")
    given = parser.parse_args()
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, (measure, draw) in RECORDED.items():
        record = FIGURES / f"{name}.json"
        if given.measure or not record.is_file():
            record.write_text(json.dumps(measure()) + "\n")
        draw(record)
    wide = {name: run for name, run in benched().items() if widths_of(run)}
    if wide:
        draw_widths(wide, FIGURES / "widths.png")
    draw_scale(read_scale(), FIGURES / "scale.png")
    save_figures(every_arm(), FIGURES, ("png",))
    for drawn in sorted(FIGURES.glob("*.png")):
        shrink(drawn)
        print(f"drew {drawn.relative_to(ROOT)}")


def every_arm() -> list[Record]:
    """The study's records, and of the parts' those of recipes that the study has not."""
    known = by_recipe(study())
    parts = by_recipe(timed(PARTS))
    return study() + [r for recipe, mine in parts.items() if recipe not in known for r in mine]


def shrink(picture: Path) -> None:
    """A third of the bytes: a drawing has few colours."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    main()
