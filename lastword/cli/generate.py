"""`lastword generate`, `predict` and `demo`: answer a prompt, or predict the length of its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli import options
from lastword.cli.options import path_option
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError

NOTE = (
    "[{} has 5M parameters: it knows five kinds of exercises (lastword demo) and is wrong beyond them. "
    "Others: lastword models]"
)


def generate(
    prompt: options.Prompt = None,
    model: options.Model = options.DEFAULT_MODEL,
    length: options.Length = None,
    unmask: options.Unmask = None,
    commit: options.Commit = None,
    cache: options.Cache = None,
    block: options.Block = None,
    recipe: options.RecipeName = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    guidance: options.Guidance = None,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    ids: options.Ids = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = "auto",
    exceed_max_seq_len: options.ExceedMaxSeqLen = False,
    live: Annotated[
        Optional[bool],
        typer.Option("--live/--no-live", help="Show denoising; by default on a terminal."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Answer a prompt on a canvas of the predicted length.

    Examples:

      lastword generate "Problem: Solve for n: 4n + 3 = 35. Be brief."

      lastword generate "Solve for n: 4n + 3 = 35." --model tiny-llada-instruct --chat --length survival

      lastword generate "What is 6 x 7?" --model GSAI-ML/LLaDA-8B-Instruct --chat --block 32

      echo "Problem: Solve for n: 4n + 3 = 35." | lastword generate --length fixed:64 --json

      lastword generate "Problem: Solve for n: 4n + 3 = 35." --recipe fast

    `lastword recipes` lists every recipe that has a name, every part and its settings.
    """
    given = options.read_prompt(prompt, chat=chat, ids=ids)
    if live and as_json:
        raise SettingError("--live and --json were given; give one: JSON is for scripts, live for eyes")

    from contextlib import nullcontext

    from rich.console import Console

    import lastword
    from lastword.cli.showcase import watching

    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "guidance": guidance}
    chosen = options.build_recipe(
        recipe, sampling, length=length, unmask=unmask, commit=commit, cache=cache, block=block
    )
    loaded = lastword.load(
        model,
        device=device,
        dtype=dtype,
        calibration=options.calibration_source(calibration),
        weights=weights,
    )
    console = Console()
    if live and not console.is_terminal:
        typer.echo("lastword: --live needs a terminal; going on without", err=True)
    shown = not as_json and live is not False and console.is_terminal
    with watching(loaded.tokenizer, console, model) if shown else nullcontext() as watcher:
        answer = lastword.generate(
            loaded,
            given,
            recipe=chosen,
            seed=seed,
            exceed_max_seq_len=exceed_max_seq_len,
            on_step=watcher,
        )
    if as_json:
        typer.echo(json.dumps({"model": model, **answer.to_data()}))
        return
    typer.echo(answer.text if answer.text is not None else " ".join(map(str, answer.tokens)))
    typer.echo(
        f"[{len(answer.tokens)} tokens, {answer.horizon} slots planned, {len(answer.canvas)} used; "
        f"{answer.cost.forward_passes} passes and {answer.cost.tokens_computed} columns, probe "
        f"{answer.probe_cost.tokens_computed}; {answer.seconds:.2f} s. {answer.finish.value}]",
        err=True,
    )
    if console.is_terminal and model in EMBEDDED:
        typer.echo(NOTE.format(model), err=True)


QUANTILES = (0.5, 0.9, 0.95)


def predict(
    prompt: options.Prompt = None,
    model: options.Model = options.DEFAULT_MODEL,
    limit: Annotated[
        Optional[int],
        typer.Option(help="How many masks the probe looks at; the model's own canvas."),
    ] = None,
    ends: Annotated[
        str, typer.Option(help="document: the paper's signal; any: count the turn end too.")
    ] = "document",
    reading: Annotated[
        str,
        typer.Option(
            help="What the signal is taken for: hazard (the paper), ended-by, boundary, "
            "first-boundary, turn-end, or auto, which picks and says why."
        ),
    ] = "auto",
    plot: Annotated[Optional[Path], path_option("Write the curve as a picture (PNG, SVG, PDF).")] = None,
    chat: options.Chat = False,
    ids: options.Ids = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    exceed_max_seq_len: options.ExceedMaxSeqLen = False,
    as_json: options.Json = False,
) -> None:
    """Predict how long the answer will be, from one forward pass.

    Examples:

      lastword predict "Problem: Solve for n: 4n + 3 = 35. Be brief."

      lastword predict "Solve for n: 4n + 3 = 35." --model tiny-llada-instruct --chat --plot curve.png

      lastword predict "What is 6 x 7?" --model GSAI-ML/LLaDA-8B-Instruct --chat --reading hazard

      echo "5 42 17" | lastword predict --ids --limit 64 --json
    """
    given = options.read_prompt(prompt, chat=chat, ids=ids)

    import lastword
    from lastword.cli.showcase import draw_curve
    from lastword.survival.plot import save_lengths
    from lastword.viz.figures import check_picture

    if plot is not None:
        check_picture(plot)
    loaded = lastword.load(model, device=device, dtype=dtype, weights=weights)
    lengths = lastword.predict_length(
        loaded,
        given,
        limit=limit,
        ends=ends,
        interpretation=reading,
        exceed_max_seq_len=exceed_max_seq_len,
    )
    limit = lengths.slots
    read_as = reading if lengths.explanation is None else lengths.explanation
    horizon = int(lengths.mean.clamp(1, limit).ceil())
    quantiles = {q: int(lengths.quantile(q)) for q in QUANTILES}
    if plot is not None:
        save_lengths(lengths, plot)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "model": model,
                    "limit": limit,
                    "explanation": read_as,
                    "expected_length": lengths.mean.item(),
                    "horizon": horizon,
                    "quantiles": {str(q): k for q, k in quantiles.items()},
                    "tail": lengths.tail.item(),
                    "hazard": [round(h, 9) for h in lengths.hazard.tolist()],
                }
            )
        )
        return
    draw_curve(lengths, horizon)
    tail = lengths.tail.item()
    shares = "   ".join(
        f"{q:.0%} within {k}" if tail <= 1 - q else f"{q:.0%} not within {limit}"
        for q, k in quantiles.items()
    )
    typer.echo(f"expected length {lengths.mean.item():.1f}, so a canvas of {horizon} (of {limit})")
    typer.echo(f"{shares}   beyond {limit}: {tail:.1%}")
    typer.echo(f"read as {read_as}")
    if plot is not None:
        typer.echo(f"wrote {plot}")


def demo(
    model: Annotated[
        Optional[list[str]],
        typer.Option("--model", "-m", help="Models to show; a folder without a tokenizer works."),
    ] = None,
    family: Annotated[
        Optional[list[str]],
        typer.Option("--family", "-f", help="Task families to show; by default all five."),
    ] = None,
    pace: Annotated[
        float, typer.Option(help="Tokens a pass. Two fit five prompts into a minute on two cores.")
    ] = 2.0,
    plot: Annotated[Optional[Path], path_option("Write the first model's curves as a picture.")] = None,
) -> None:
    """Predict a length, decode on the fixed canvas and on the predicted one, and compare.

    An embedded model answers a held-out prompt of each task family, and its answers are checked.

    Examples:

      lastword demo

      lastword demo --model tiny-dream-instruct --family algebra

      lastword demo --family algebra --family reasoning --pace 4 --plot curves.png
    """
    from rich.console import Console

    from lastword.cli.showcase import check_families, showcase
    from lastword.survival.plot import save_rows
    from lastword.viz.figures import check_picture

    names = model or [options.DEFAULT_MODEL]
    check_families(names, family)
    if plot is not None:
        check_picture(plot)
    console = Console()
    for place, name in enumerate(names):
        lengths, titles, truths = showcase(name, console, family, pace)
        if plot is not None and place == 0:
            save_rows(lengths, titles, plot, truths=truths)
            console.print(f"wrote {plot}")
