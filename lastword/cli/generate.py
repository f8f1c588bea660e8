"""`lastword generate`, `predict` and `demo`: answer a prompt, or predict the length of its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

import lastword
from lastword.cli import options
from lastword.cli.console import draw_curve, live_canvas
from lastword.cli.options import ModelOptions, PromptOptions, RecipeOptions, path_option
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError

NOTE = (
    "[{} has 5M parameters: it knows five kinds of exercises (lastword demo) and is wrong beyond them. "
    "Other models: lastword models]"
)


def generate(
    model_options: ModelOptions,
    recipe_options: RecipeOptions,
    prompt_options: PromptOptions,
    max_new_tokens: options.MaxNewTokens = None,
    stop: options.Stop = None,
    seed: options.Seed = 0,
    calibration: options.CalibrationFile = "auto",
    import_modules: options.Imports = None,
    live: Annotated[bool | None, Option(help="Draw the canvas while it is decoded. Default: on a terminal.")] = None,
) -> None:
    """Answer a prompt on a canvas of the predicted length.

    One forward pass predicts the length of the answer. `lastword recipes` lists the recipes, and the parts that options
    such as --length and --unmask accept.

    Examples:

        lastword generate "Problem: Solve for n: 4n + 3 = 35. Be brief."
        lastword generate "Problem: Solve for n: 4n + 3 = 35." --recipe fast
        lastword generate "Solve for n: 4n + 3 = 35." \\
          --model tiny-llada-instruct --length survival --max-new-tokens 64
        lastword generate "What is 6 x 7?" \\
          --model GSAI-ML/LLaDA-8B-Instruct --recipe fast --stop "Question:"
        echo "Problem: Solve for n: 4n + 3 = 35." | lastword generate --json
    """
    content, as_json = prompt_options.read(), prompt_options.as_json
    if live and as_json:
        raise SettingError("--live and --json were given; give one: --json is for scripts, --live for a terminal")
    recipe, console = recipe_options.build(), Console()
    model = model_options.source(calibration).load()
    if live and not console.is_terminal:
        typer.echo("lastword: --live needs a terminal and was ignored", err=True)
    exceed = prompt_options.exceed_max_seq_len
    with live_canvas(model, console, model_options.name, enabled=not as_json and live is not False) as on_step:
        answer = lastword.generate(
            model,
            content,
            recipe=recipe,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seed=seed,
            chat=prompt_options.chat,
            exceed_max_seq_len=exceed,
            on_step=on_step,
        )
    if as_json:
        typer.echo(json.dumps({"model": model_options.name, **answer.to_data()}))
        return
    typer.echo(answer.text if answer.text is not None else " ".join(map(str, answer.tokens)))
    typer.echo(
        f"[{len(answer.tokens)} tokens, {answer.horizon} slots planned, {len(answer.canvas)} used; "
        f"{answer.cost.forward_passes} forward passes, {answer.cost.tokens_computed} tokens computed, "
        f"plus {answer.probe_cost.tokens_computed} by the probe; {answer.seconds:.2f} s; {TEMPLATE_USE[answer.chat]}. "
        f"{answer.finish.value}]",
        err=True,
    )
    if console.is_terminal and model_options.name in EMBEDDED:
        typer.echo(NOTE.format(model_options.name), err=True)


TEMPLATE_USE = {
    True: "with the chat template (--no-chat: without)",
    False: "without a chat template",
    None: "from token ids",
}
QUANTILES = (0.5, 0.9, 0.95)


def predict(
    model_options: ModelOptions,
    prompt_options: PromptOptions,
    slots: options.Slots = None,
    ends: options.Ends = "document",
    interpretation: options.InterpretationName = "auto",
    plot: Annotated[Path | None, path_option("Write the survival curve as PNG, SVG or PDF.")] = None,
    import_modules: options.Imports = None,
) -> None:
    """Predict the length of an answer from one forward pass.

    The survival curve shows, for each number of tokens, the probability that the answer is longer.

    Examples:

        lastword predict "Problem: Solve for n: 4n + 3 = 35. Be brief."
        lastword predict "Solve for n: 4n + 3 = 35." \\
          --model tiny-llada-instruct --plot curve.png
        lastword predict "What is 6 x 7?" \\
          --model GSAI-ML/LLaDA-8B-Instruct --interpretation hazard
        echo "5 42 17" | lastword predict --ids --slots 64 --json
    """
    from lastword.prompts import prompts_in_chat, with_chat_template
    from lastword.viz.figures import check_picture

    content = prompt_options.read()
    check_picture(plot)
    model = model_options.source("auto").load()
    lengths = lastword.predict_length(
        model,
        content,
        limit=slots,
        ends=ends,
        interpretation=interpretation,
        chat=prompt_options.chat,
        exceed_max_seq_len=prompt_options.exceed_max_seq_len,
    )
    (in_chat,) = prompts_in_chat(with_chat_template(model, content, prompt_options.chat))
    explanation = lengths.explanation or interpretation
    mean, tail, slots = lengths.mean.item(), lengths.tail.item(), lengths.slots
    horizon = int(lengths.mean.clamp(1, slots).ceil())
    quantiles = {q: int(lengths.quantile(q)) for q in QUANTILES}
    if plot is not None:
        lastword.save_lengths(lengths, plot)
    if prompt_options.as_json:
        data = {
            "model": model_options.name,
            "slots": slots,
            "chat": in_chat,
            "explanation": explanation,
            "expected_length": mean,
            "horizon": horizon,
            "quantiles": {str(q): length for q, length in quantiles.items()},
            "tail": tail,
            "hazard": [round(hazard, 9) for hazard in lengths.hazard.tolist()],
        }
        typer.echo(json.dumps(data))
        return
    draw_curve(lengths, horizon)
    shares = "   ".join(
        f"{q:.0%} within {length}" if tail <= 1 - q else f"{q:.0%} not within {slots}"
        for q, length in quantiles.items()
    )
    typer.echo(f"expected length {mean:.1f}, so a canvas of {horizon} (of {slots})")
    typer.echo(f"{shares}   beyond {slots}: {tail:.1%}")
    typer.echo(f"interpreted as {explanation}; {TEMPLATE_USE[in_chat]}")
    if plot is not None:
        typer.echo(f"wrote {plot}")


def demo(
    model: Annotated[list[str] | None, Option("--model", "-m", help=f"{options.MODELS} Repeatable.")] = None,
    family: Annotated[
        list[str] | None, Option("--family", "-f", help="Embedded task, such as algebra. Repeatable. Default: all.")
    ] = None,
    pace: Annotated[float, Option(help="Tokens per forward pass, on both canvases.")] = 2.0,
    plot: Annotated[
        Path | None, path_option("Write the survival curves of the first model as PNG, SVG or PDF.")
    ] = None,
) -> None:
    """Compare answers on a fixed canvas and on a canvas of the predicted length.

    An embedded model answers one held-out prompt of each embedded task, and the answers are scored.

    Examples:

        lastword demo
        lastword demo --model tiny-dream-instruct --family algebra
        lastword demo --family algebra --family reasoning --pace 4 --plot curves.png
    """
    from lastword.cli.showcase import check_families, showcase
    from lastword.viz.figures import check_picture

    names = model or [options.DEFAULT_MODEL]
    check_families(names, family)
    check_picture(plot)
    for index, name in enumerate(names):
        showcase(name, Console(), family, pace, None if index else plot)
