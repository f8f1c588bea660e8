"""`lastword predict`: how long will the answer be?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.options import (
    DEFAULT_MODEL,
    BeyondOption,
    ChatOption,
    DeviceOption,
    DtypeOption,
    IdsOption,
    JsonOption,
    ModelOption,
    ParallelOption,
    PromptArgument,
    WeightsOption,
    path_option,
    prints,
    read_prompt,
)

QUANTILES = (0.5, 0.9, 0.95)


def predict(
    prompt: PromptArgument = None,
    model: ModelOption = DEFAULT_MODEL,
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
    chat: ChatOption = False,
    ids: IdsOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    weights: WeightsOption = None,
    parallel: ParallelOption = 1,
    exceed_max_seq_len: BeyondOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict how long the answer will be, from one forward pass.

    Examples:

      lastword predict "Problem: Solve for n: 4n + 3 = 35. Be brief."

      lastword predict "Solve for n: 4n + 3 = 35." --model tiny-llada-instruct --chat --plot curve.png

      lastword predict "What is 6 x 7?" --model GSAI-ML/LLaDA-8B-Instruct --chat --reading hazard

      echo "5 42 17" | lastword predict --ids --limit 64 --json
    """
    given = read_prompt(prompt, chat=chat, ids=ids)

    import lastword
    from lastword.cli.curve import draw_curve
    from lastword.survival.plot import save_lengths
    from lastword.viz.figures import check_picture

    if plot is not None:
        check_picture(plot)
    loaded = lastword.load(model, device=device, dtype=dtype, weights=weights, parallel=parallel)
    lengths = lastword.predict_length(
        loaded,
        given,
        limit=limit,
        ends=ends,
        reading=reading,
        exceed_max_seq_len=exceed_max_seq_len,
    )
    if not prints(loaded):
        return
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
