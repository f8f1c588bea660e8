"""Arguments that several commands share, and how a prompt is read."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from lastword.errors import PromptError

PromptArgument = Annotated[
    Optional[str],
    typer.Argument(help="The prompt. Left out or '-', it is read from standard input."),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        show_default=True,
        help="A checkpoint folder, a hub name, tiny-llada-base and the like, or toy.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
ChatOption = Annotated[
    bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
]
IdsOption = Annotated[
    bool, typer.Option("--ids", help="The prompt is token ids, separated by spaces or commas.")
]
CalibrationOption = Annotated[
    str,
    typer.Option(help="The file lastword calibrate wrote; auto: the model folder's; or none."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
BeyondOption = Annotated[
    bool,
    typer.Option("--beyond-positions", help="Allow more tokens than the model has positions."),
]


def read_prompt(argument: str | None, *, chat: bool, ids: bool) -> Any:
    """The prompt as `generate` takes it."""
    if argument is None or argument == "-":
        if sys.stdin.isatty():
            raise PromptError("no prompt was given; write one as an argument or pipe it in")
        argument = sys.stdin.read().rstrip("\n")
    if not argument:
        raise PromptError("the prompt is empty; give it at least one token")
    if ids:
        try:
            return [int(word) for word in argument.replace(",", " ").split()]
        except ValueError as wrong:
            raise PromptError(f"--ids takes whole numbers only ({wrong})") from wrong
    return [{"role": "user", "content": argument}] if chat else argument
