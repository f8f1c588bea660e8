"""Arguments that several commands share, and how a prompt is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lastword.errors import LastwordError, PromptError
from lastword.io.files import user_path
from lastword.validation import MAX_SEED, MIN_SEED, check_int

# Answers a plain prompt as it stands; an instruct model wants --chat.
DEFAULT_MODEL = "tiny-llada-base"
MOST_LETTERS = 10**7  # of a prompt


def as_path(text: str | Path) -> Path:
    """A path as a user wrote it: `~` is a home folder, and nothing is no path."""
    if not str(text):
        raise typer.BadParameter("the path is empty; give one, or leave the option out")
    try:
        return user_path(text)
    except LastwordError as wrong:
        raise typer.BadParameter(str(wrong)) from wrong


def as_seed(value: int) -> int:
    """A number that a generator takes for a seed."""
    check_int("lastword", "seed", value, minimum=MIN_SEED, maximum=MAX_SEED)
    return value


def path_option(words: str) -> Any:
    """An option that takes a path; `words` is its help."""
    return typer.Option(parser=as_path, metavar="PATH", help=words)


def as_name_or_path(text: str) -> str:
    """A recipe's name or file, as it was written: what is no name must be a path."""
    as_path(text)
    return text


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
        help="A checkpoint folder, a hub name, or a built-in one: tiny-llada-base, tiny-llada-instruct, "
        "tiny-dream-base, tiny-dream-instruct, toy.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
WeightsOption = Annotated[
    Optional[str],
    typer.Option(help="fp8: quantise the layers' weights. Default: as they are stored."),
]
ParallelOption = Annotated[
    int,
    typer.Option(
        help="Split the model over so many ranks, for models larger than one card: start the command as "
        "torchrun --nproc-per-node N -m lastword ... --parallel N. Rank 0 prints."
    ),
]
ChatOption = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")]
IdsOption = Annotated[
    bool, typer.Option("--ids", help="The prompt is token ids, separated by spaces or commas.")
]
RecipeOption = Annotated[
    Optional[str],
    typer.Option(
        parser=as_name_or_path,
        metavar="NAME|PATH",
        help="careful, fast, paper, fixed, or a file of JSON; other options override it.",
    ),
]
SeedOption = Annotated[int, typer.Option(callback=as_seed, help="For everything random.")]
CalibrationOption = Annotated[
    str,
    typer.Option(help="The file lastword calibrate wrote; auto: the model folder's; or none."),
]
EngineOption = Annotated[
    str,
    typer.Option(
        help="Who answers: local (this process), processes (several, here), ray (a cluster), openai (a "
        "server that speaks its API)."
    ),
]
WorkersOption = Annotated[
    Optional[int],
    typer.Option(help="Processes, actors, or requests at once. Default: one a GPU or core."),
]
ThreadsOption = Annotated[Optional[int], typer.Option(help="Threads of a worker on a CPU. Default: 1.")]
AddressOption = Annotated[
    Optional[str],
    typer.Option(help="Of a Ray cluster: auto, HOST:PORT, or local for one that lives as long."),
]
BaseUrlOption = Annotated[Optional[str], typer.Option(help="Of a server, such as http://127.0.0.1:8000/v1.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
BeyondOption = Annotated[
    bool,
    typer.Option("--exceed-max-seq-len", help="Allow more tokens than the model has positions."),
]


def prints(model: Any) -> bool:
    """Is this the process that prints? Of several ranks that hold one model, the first."""
    ranks = getattr(model, "ranks", None)
    return ranks is None or ranks.rank == 0


def read_prompt(argument: str | None, *, chat: bool, ids: bool) -> Any:
    """The prompt as `generate` takes it."""
    if chat and ids:
        raise PromptError(
            "--ids and --chat were given; token ids go to the model as they are: give text with --chat, or "
            "ids without it"
        )
    if argument is None or argument == "-":
        if sys.stdin.isatty():
            raise PromptError("no prompt was given; write one as an argument or pipe it in")
        argument = _standard_input().rstrip("\n")
    if not argument:
        raise PromptError("the prompt is empty; write one as an argument or pipe it in")
    if any("\ud800" <= letter <= "\udfff" for letter in argument):  # how Python spells such bytes
        raise PromptError("the prompt holds bytes that are no UTF-8; give it as UTF-8 text")
    if ids:
        try:
            return [int(word) for word in argument.replace(",", " ").split()]
        except ValueError as wrong:
            raise PromptError(
                f"--ids takes whole numbers only ({wrong}); write them as in '5 42 17', or leave --ids out"
            ) from wrong
    return [{"role": "user", "content": argument}] if chat else argument


def _standard_input() -> str:
    try:
        text = sys.stdin.read(MOST_LETTERS + 1)
    except UnicodeDecodeError as binary:
        raise PromptError(
            f"standard input is no {sys.stdin.encoding} text ({binary}); give the prompt as UTF-8"
        ) from binary
    except OSError as refused:
        raise PromptError(
            f"standard input cannot be read ({refused}); give the prompt as an argument"
        ) from refused
    if len(text) > MOST_LETTERS:
        raise PromptError(f"standard input holds more than {MOST_LETTERS} letters; give a shorter prompt")
    return text
