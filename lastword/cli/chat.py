"""`lastword chat`: a conversation in the terminal, with a model here or with a server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from lastword.cli.options import DeviceOption, DtypeOption, RecipeOption, WeightsOption, as_seed
from lastword.cli.serve import KEY

if TYPE_CHECKING:
    from lastword.cli.chatting.heard import Answerer, Wishes

CHATTING = "tiny-llada-instruct"


def chat(
    model: Annotated[
        Optional[str],
        typer.Option(
            "--model",
            "-m",
            help=f"A checkpoint folder, a hub name, or a built-in one. Default: {CHATTING}, or with --url "
            "the one that the server has.",
        ),
    ] = None,
    url: Annotated[
        Optional[str],
        typer.Option(help=f"Ask the server at this address; {KEY} holds the key to it."),
    ] = None,
    recipe: RecipeOption = None,
    length: Annotated[
        Optional[str], typer.Option(help="default:512, survival, fixed:256, daedal ...")
    ] = None,
    temperature: Annotated[Optional[float], typer.Option(help="0 takes the best token.")] = None,
    seed: Annotated[
        Optional[int],
        typer.Option(
            callback=lambda value: None if value is None else as_seed(value),
            help="For everything random. Default: another for every answer.",
        ),
    ] = None,
    max_tokens: Annotated[
        Optional[int],
        typer.Option(min=1, help="Tokens of an answer at most. It does not size the canvas."),
    ] = None,
    system: Annotated[Optional[str], typer.Option(help="What the conversation begins with.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    weights: WeightsOption = None,
) -> None:
    """Talk with a model: on a terminal its answers are shown while they are denoised.

    A line is a question; /reset, /save FILE, /replay FILE, /help and /quit are commands. Ctrl-C stops an
    answer, Ctrl-D leaves. Answers go to standard output, and what each took to standard error.

    Examples:

      lastword chat

      lastword chat --recipe fast --max-tokens 200

      lastword chat --url http://127.0.0.1:8000

      echo "Solve for n: 4n + 3 = 35." | lastword chat --temperature 0
    """
    from rich.console import Console

    from lastword.cli.chatting.heard import Wishes
    from lastword.cli.chatting.showing import note
    from lastword.cli.chatting.talk import HELP, Talk

    wishes = Wishes(recipe, length, temperature, seed, max_tokens)
    console = Console()
    answerer = _there(url, model, wishes) if url else _here(model, wishes, device, dtype, weights)
    if sys.stdin.isatty() and console.is_terminal:
        import contextlib

        with contextlib.suppress(ImportError):  # arrow keys in what is typed, where there are any
            import readline  # noqa: F401
        note(f"{answerer.name}. {HELP}")
    Talk(answerer, console, system).run()


def _there(url: str, name: str | None, wishes: Wishes) -> Answerer:
    from lastword.cli.chatting.http import Http
    from lastword.cli.chatting.there import There

    return There(Http(url, os.environ.get(KEY)), name, wishes)


def _here(name: str | None, wishes: Wishes, device: str, dtype: str, weights: str | None) -> Answerer:
    from lastword.cli.chatting.here import Here
    from lastword.cli.generate import read_recipe
    from lastword.models.load import load

    chosen = read_recipe(wishes.recipe)
    loaded = load(name or CHATTING, device=device, dtype=dtype, weights=weights)
    return Here(loaded, name or CHATTING, chosen, wishes)
