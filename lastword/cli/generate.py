"""`lastword generate`: answer a prompt."""

from __future__ import annotations

import json
from typing import Annotated, Any, Optional

import typer

from lastword.cli.options import (
    DEFAULT_MODEL,
    MOST_LETTERS,
    BeyondOption,
    CalibrationOption,
    ChatOption,
    DeviceOption,
    DtypeOption,
    IdsOption,
    JsonOption,
    ModelOption,
    ParallelOption,
    PromptArgument,
    RecipeOption,
    SeedOption,
    WeightsOption,
    as_path,
    prints,
    read_prompt,
)
from lastword.embedded import EMBEDDED
from lastword.errors import RecipeError, SettingError

NOTE = (
    "[{} has 5M parameters: it knows five kinds of exercises (lastword demo) and is wrong beyond them. "
    "Others: lastword models]"
)


def generate(
    prompt: PromptArgument = None,
    model: ModelOption = DEFAULT_MODEL,
    length: Annotated[
        Optional[str],
        typer.Option(
            help="default:512 (one probe, grow, stop at the end), survival (the paper), fixed:256, "
            "daedal ... Default: default, on as many slots as the model is made for."
        ),
    ] = None,
    unmask: Annotated[
        Optional[str],
        typer.Option(help="most-confident, threshold:0.9, slow-fast ... Default: most-confident."),
    ] = None,
    commit: Annotated[
        Optional[str], typer.Option(help="never, prophet, stable-margin. Default: never.")
    ] = None,
    cache: Annotated[Optional[str], typer.Option(help="none, prefix, dual, feature. Default: none.")] = None,
    block: Annotated[
        Optional[int],
        typer.Option(
            help="Left to right in blocks of this size. Default: none, or 32 where the length needs them."
        ),
    ] = None,
    recipe: RecipeOption = None,
    temperature: Annotated[Optional[float], typer.Option(help="0 takes the best token.")] = None,
    top_p: Annotated[Optional[float], typer.Option(help="Keep this much probability.")] = None,
    top_k: Annotated[Optional[int], typer.Option(help="Keep this many tokens.")] = None,
    guidance: Annotated[
        Optional[float], typer.Option(help="Classifier-free guidance scale; 0 is off.")
    ] = None,
    seed: SeedOption = 0,
    chat: ChatOption = False,
    ids: IdsOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    weights: WeightsOption = None,
    parallel: ParallelOption = 1,
    calibration: CalibrationOption = "auto",
    exceed_max_seq_len: BeyondOption = False,
    live: Annotated[
        Optional[bool],
        typer.Option("--live/--no-live", help="Show denoising; by default on a terminal."),
    ] = None,
    as_json: JsonOption = False,
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
    given = read_prompt(prompt, chat=chat, ids=ids)
    if live and as_json:
        raise SettingError("--live and --json were given; give one: JSON is for scripts, live for eyes")

    from contextlib import nullcontext
    from dataclasses import replace

    from rich.console import Console

    import lastword
    from lastword.cli.live import watching

    chosen = read_recipe(recipe).with_choices(
        length=length, unmask=unmask, commit=commit, cache=cache, block=block
    )
    draws = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "guidance": guidance}
    given_draws = {name: value for name, value in draws.items() if value is not None}
    chosen = replace(chosen, sampling=replace(chosen.sampling, **given_draws))

    loaded = lastword.load(
        model,
        device=device,
        dtype=dtype,
        calibration=None if calibration == "none" else calibration,
        weights=weights,
        parallel=parallel,
    )
    console = Console()
    if live and not console.is_terminal and prints(loaded):
        typer.echo("lastword: --live needs a terminal; going on without", err=True)
    shown = not as_json and live is not False and console.is_terminal and prints(loaded)
    with watching(loaded.tokenizer, console, model) if shown else nullcontext() as watcher:
        answer = lastword.generate(
            loaded,
            given,
            recipe=chosen,
            seed=seed,
            exceed_max_seq_len=exceed_max_seq_len,
            on_step=watcher,
        )
    if not prints(loaded):
        return
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


def read_recipe(given: str | None) -> Any:
    """A recipe by its name or from its file; the default where nothing was given."""
    from lastword.recipe.recipe import Recipe
    from lastword.recipe.registry import RECIPES

    if given is None or given in RECIPES:
        return Recipe.coerce(given)
    path = as_path(given)
    if given.isidentifier() and not path.exists():  # a word, and no file: the name of none
        return Recipe.named(given)
    try:
        with path.open(encoding="utf-8") as file:  # a pipe or a device may have no end
            text = file.read(MOST_LETTERS + 1)
    except (OSError, UnicodeDecodeError) as missing:
        raise RecipeError(
            f"the recipe file cannot be read ({missing}); give a file of JSON, or a name: "
            f"{', '.join(RECIPES)}"
        ) from missing
    if len(text) > MOST_LETTERS:
        raise RecipeError(
            f"the recipe file {str(path)!r} holds more than {MOST_LETTERS} letters; give a recipe in JSON"
        )
    return Recipe.from_json(text)
