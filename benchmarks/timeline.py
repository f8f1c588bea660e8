"""The record and the figure of a server under load: the requests in a batch over time."""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

from typing_extensions import override

import lastword
from lastword.api import Finish
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.engine import ServerEngine
from lastword.serve.metrics import EngineMetrics
from lastword.serve.request import RequestFinished, ServerRequest
from lastword.serve.settings import ServerSettings
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.viz.figures import INK, ORANGE, new_figure, save

MODEL = "tiny-llada-instruct"
REQUESTS, BATCH_SIZE = 24, 4


class PassTimes(EngineMetrics):
    """The end of each forward pass; events are located by passes, which do not depend on the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    @override
    def count_passes(self, passes: int, row_passes: int, tokens: int, padded_tokens: int, seconds: float) -> None:
        self.ends += [time.monotonic()] * passes

    def before(self, moment: float) -> int:
        """Return the number of forward passes that ended before a moment."""
        return bisect_left(self.ends, moment)


def measure_serving() -> dict[str, object]:
    """Return the record: prompts of all families, sent at the same time to an engine with batches of 4."""
    return {"model": MODEL, "slots": BATCH_SIZE, "answers": asyncio.run(_answers())}


async def _answers() -> list[dict[str, Any]]:
    model: Any = lastword.load(MODEL, device="cpu")
    families = [load_frozen("test", family) for family in BENCHMARKS]
    examples = [families[n % len(families)][n // len(families)] for n in range(REQUESTS)]
    prompts = [model.tokenizer.chat([{"role": "user", "content": e.prompt}]) for e in examples]
    requests = [ServerRequest(tuple(prompt), resolve(Recipe(), model, [prompt], in_chat=[True])) for prompt in prompts]
    passes = PassTimes()
    engine = ServerEngine(model, ServerSettings(max_batch_size=BATCH_SIZE, max_queue_size=REQUESTS), metrics=passes)
    engine.start()
    while engine.state == "starting":
        await asyncio.sleep(0.01)
    try:
        arrived = time.monotonic()
        answers = await engine.submit(requests).answers()
        return [_details(answer, arrived, passes) for answer in answers]
    finally:
        await engine.stop()


def _details(answer: RequestFinished, arrived: float, passes: PassTimes) -> dict[str, Any]:
    lengths, began = answer.generation.lengths, arrived + answer.seconds_queued
    assert lengths is not None
    return {
        "predicted": round(lengths.mean.item(), 2),
        "written": len(answer.generation.tokens) + (answer.generation.finish is Finish.ENDED),
        "began": passes.before(began),
        "ended": passes.before(began + answer.seconds_decoding),
    }


def draw_serving(record: Path) -> None:
    """Draw the rows of the batch over time, and the waiting time of each request by its predicted length."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    kept = json.loads(record.read_text())
    answers = sorted(kept["answers"], key=lambda answer: answer["began"])
    colours = ScalarMappable(Normalize(0, max(answer["predicted"] for answer in answers)), "viridis_r")
    figure = new_figure(10, 3.4)
    slots, waits = figure.subplots(1, 2, width_ratios=(3, 1))
    free = [0] * kept["slots"]  # when each slot was last left
    for answer in answers:
        slot = next((s for s, at in enumerate(free) if at <= answer["began"]), free.index(min(free)))
        free[slot] = answer["ended"]
        took = answer["ended"] - answer["began"]
        colour = colours.to_rgba(answer["predicted"])
        slots.barh(slot, took, left=answer["began"], height=0.8, color=colour, edgecolor="white")
        end = answer["began"] + took * answer["predicted"] / max(answer["written"], 1)
        slots.plot([end, end], [slot - 0.4, slot + 0.4], color=ORANGE, linewidth=2)
        label = f"{answer['predicted']:.0f}\n{answer['written']}"
        dark = answer["predicted"] > colours.norm.vmax / 2  # type: ignore[operator]
        slots.text(
            answer["began"] + took / 2,
            slot,
            label,
            ha="center",
            va="center",
            fontsize="x-small",
            color="white" if dark else "black",
        )
        waits.plot(answer["predicted"], answer["began"], "o", color=colour, markeredgecolor=INK)
    slots.set(
        xlabel="forward passes", ylabel="row of the batch", yticks=range(kept["slots"]), xlim=(0, None),
        title="Each bar is an answer: predicted length above, true length below; orange: predicted end",
    )  # fmt: skip
    slots.title.set_fontsize("small")
    slots.grid(visible=False)
    waits.set(xlabel="predicted length", ylabel="forward passes in the queue", title="Short answers start first")
    waits.title.set_fontsize("small")
    save(figure, record.with_suffix(".png"))
