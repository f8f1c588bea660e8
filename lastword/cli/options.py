"""Options that several commands share, and the values that are built from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lastword.errors import LastwordError, PromptError, RecipeError
from lastword.io.files import user_path
from lastword.validation import MAX_SEED, MIN_SEED, check_int

DEFAULT_MODEL = "tiny-llada-base"  # it takes prompts without a chat template
MAX_CHARACTERS = 10**7  # of a prompt or of a recipe file


def as_path(text: str | Path) -> Path:
    """Return the path that a user wrote, in which `~` is a home folder."""
    if not str(text):
        raise typer.BadParameter("the path is empty; give one, or leave the option out")
    try:
        return user_path(text)
    except LastwordError as error:
        raise typer.BadParameter(str(error)) from error


def as_seed(value: int | None) -> int | None:
    """Return the seed, or raise SettingError if no generator takes it."""
    if value is not None:
        check_int("lastword", "seed", value, minimum=MIN_SEED, maximum=MAX_SEED)
    return value


def path_option(words: str) -> Any:
    """Return an option that takes a path; `words` is its help text."""
    return typer.Option(parser=as_path, metavar="PATH", help=words)


def as_name_or_path(text: str) -> str:
    """Return a recipe's name or path unchanged; raise BadParameter if it can be neither."""
    as_path(text)
    return text


Prompt = Annotated[
    Optional[str], typer.Argument(help="The prompt. Without it or with '-', it is read from standard input.")
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        show_default=True,
        help="A checkpoint folder, a hub name, or an embedded model: tiny-llada-base, tiny-llada-instruct, "
        "tiny-dream-base, tiny-dream-instruct, toy.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
Weights = Annotated[
    Optional[str], typer.Option(help="fp8: quantise the layers' weights. Default: as they are stored.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")]
Ids = Annotated[bool, typer.Option("--ids", help="The prompt is token ids, separated by spaces or commas.")]
RecipeName = Annotated[
    Optional[str],
    typer.Option(
        parser=as_name_or_path,
        metavar="NAME|PATH",
        help="careful, fast, paper, fixed, or a JSON file; other options override it.",
    ),
]
Length = Annotated[
    Optional[str],
    typer.Option(
        help="default:512 (one probe, grow, stop at the end), survival (the paper), fixed:256, daedal ... "
        "Default: default, with the model's default number of new tokens."
    ),
]
Unmask = Annotated[
    Optional[str],
    typer.Option(help="most-confident, threshold:0.9, slow-fast ... Default: most-confident."),
]
Commit = Annotated[Optional[str], typer.Option(help="never, prophet, stable-margin. Default: never.")]
Cache = Annotated[Optional[str], typer.Option(help="none, prefix, dual, feature. Default: none.")]
Block = Annotated[
    Optional[int],
    typer.Option(
        help="Decode left to right in blocks of this size. Default: none, or 32 if the length needs it."
    ),
]
Temperature = Annotated[Optional[float], typer.Option(help="0 chooses the most probable token.")]
TopP = Annotated[Optional[float], typer.Option(help="Sample from this share of the probability.")]
TopK = Annotated[Optional[int], typer.Option(help="Sample from this number of tokens.")]
Guidance = Annotated[Optional[float], typer.Option(help="Classifier-free guidance scale; 0 is off.")]
Seed = Annotated[int, typer.Option(callback=as_seed, help="Seed of everything random.")]
CalibrationFile = Annotated[
    str,
    typer.Option(
        "--calibration", help="A file of lastword calibrate; auto: the one in the model folder; or none."
    ),
]
Rows = Annotated[int, typer.Option(help="Prompts decoded at the same time.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local (this process), processes (several, on this machine), ray (a cluster), or openai (a "
        "server with the OpenAI API).",
    ),
]
Workers = Annotated[
    Optional[int],
    typer.Option(help="Processes, actors, or concurrent requests. Default: one per GPU or core."),
]
Threads = Annotated[Optional[int], typer.Option(help="Threads of a worker on a CPU. Default: 1.")]
Address = Annotated[
    Optional[str],
    typer.Option(help="Ray cluster: auto, HOST:PORT, or local for one that ends with the command."),
]
BaseUrl = Annotated[Optional[str], typer.Option(help="Server, such as http://127.0.0.1:8000/v1.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
ExceedMaxSeqLen = Annotated[
    bool, typer.Option("--exceed-max-seq-len", help="Allow more tokens than the model has positions.")
]


def calibration_source(text: str) -> str | None:
    """Return the value of --calibration as `load` takes it."""
    return None if text == "none" else text


def build_recipe(recipe: str | None, sampling: dict[str, float | int | None], **parts: Any) -> Any:
    """Return a recipe by name or from a file, with the sampling settings and parts that are not None."""
    from dataclasses import replace

    chosen = read_recipe(recipe).with_choices(**parts)
    changed = {name: value for name, value in sampling.items() if value is not None}
    return replace(chosen, sampling=replace(chosen.sampling, **changed))


def read_recipe(text: str | None) -> Any:
    """Return a recipe by its name or from its file; the default recipe for None."""
    from lastword.recipe.recipe import Recipe
    from lastword.recipe.registry import RECIPES

    if text is None or text in RECIPES:
        return Recipe.coerce(text)
    path = as_path(text)
    if text.isidentifier() and not path.exists():
        return Recipe.named(text)
    try:
        with path.open(encoding="utf-8") as file:  # a pipe or a device may have no end
            content = file.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"the recipe file cannot be read ({error}); give a JSON file, or a name: {', '.join(RECIPES)}"
        ) from error
    if len(content) > MAX_CHARACTERS:
        raise RecipeError(
            f"the recipe file {str(path)!r} has more than {MAX_CHARACTERS} characters; give a recipe in JSON"
        )
    return Recipe.from_json(content)


def read_prompt(argument: str | None, *, chat: bool, ids: bool) -> Any:
    """Return the prompt of a command as `generate` takes it."""
    if chat and ids:
        raise PromptError(
            "--ids and --chat were given; token ids are not wrapped in a chat template: give text with "
            "--chat, or ids without it"
        )
    if argument is None or argument == "-":
        if sys.stdin.isatty():
            raise PromptError("no prompt was given; write one as an argument or pipe it in")
        argument = _read_standard_input().rstrip("\n")
    if not argument:
        raise PromptError("the prompt is empty; write one as an argument or pipe it in")
    check_utf8(argument, "the prompt")
    if ids:
        try:
            return [int(word) for word in argument.replace(",", " ").split()]
        except ValueError as error:
            raise PromptError(
                f"--ids takes whole numbers only ({error}); write them as in '5 42 17', or leave --ids out"
            ) from error
    return [{"role": "user", "content": argument}] if chat else argument


def check_utf8(text: str, what: str) -> None:
    """Raise PromptError if the text was made of bytes that are not UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError(f"{what} contains bytes that are not UTF-8; give UTF-8 text")


def _read_standard_input() -> str:
    try:
        text = sys.stdin.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise PromptError(
            f"standard input is not {sys.stdin.encoding} text ({error}); give the prompt as UTF-8"
        ) from error
    except OSError as error:
        raise PromptError(
            f"standard input cannot be read ({error}); give the prompt as an argument"
        ) from error
    if len(text) > MAX_CHARACTERS:
        raise PromptError(f"standard input has more than {MAX_CHARACTERS} characters; give a shorter prompt")
    return text
