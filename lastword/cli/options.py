"""Options shared by several commands, and the prompts, recipes and engines that are built from them.

A command has a group of options as one parameter, whose type is a dataclass of this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

import lastword
from lastword.errors import LastwordError, PromptError, RecipeError, SettingError
from lastword.io.files import check_target, user_path
from lastword.validation import MAX_SEED, MIN_SEED, check_choice, check_int

if TYPE_CHECKING:
    from lastword.engines import Engine, ModelSource

DEFAULT_MODEL = "tiny-llada-base"  # a base model: prompts need no chat template
CHAT_MODEL = "tiny-llada-instruct"
MAX_CHARACTERS = 10**7  # of a prompt or of a recipe file


def as_path(text: str | Path) -> Path:
    """Return a path with `~` expanded; raise BadParameter if it is empty or invalid."""
    if not str(text):
        raise BadParameter("the path is empty; give one, or leave the option out")
    try:
        return user_path(text)
    except LastwordError as error:
        raise BadParameter(str(error)) from error


def as_seed(value: int | None) -> int | None:
    """Return the seed unchanged; raise SettingError if it does not fit into 64 bits."""
    if value is not None:
        check_int("lastword", "seed", value, minimum=MIN_SEED, maximum=MAX_SEED)
    return value


def as_name_or_path(text: str) -> str:
    """Return a recipe's name or path unchanged; raise BadParameter if it can be neither."""
    as_path(text)
    return text


def path_option(words: str) -> Any:
    """Return a typer option whose value is a path; `words` is its help text."""
    return Option(parser=as_path, metavar="PATH", help=words)


def check_replaceable(path: Path, kind: str, read: Callable[[Path], Any]) -> None:
    """Raise SettingError if `path` cannot be written, or is a file that `read` does not accept."""
    check_target(path)
    if path.is_file() and path.stat().st_size:
        try:
            read(path)
        except LastwordError as error:
            raise SettingError(
                f"{path} exists and is not {kind}, so it was not replaced; give another file with --out"
            ) from error


MODELS = "A checkpoint folder, a hub name, or an embedded model (lastword models)."
DEFAULTS = f"Default: {DEFAULT_MODEL}; {CHAT_MODEL} in a chat; the preset's or the server's."
RECIPES = "careful, fast, paper, fixed, or a JSON file; other options override it."
LENGTHS = "default:512 (one probe, grow, stop at the end), survival (the paper), fixed:256, daedal ..."
IDS = "The prompt is token ids, separated by spaces or commas."
EXCEED = "Allow more tokens than the model has positions."
INTERPRETATIONS = "Interpretation of the end signal: auto, hazard (the paper), boundary, ended-by, turn-end ..."
CHAT_SEED = "Seed of everything random. Default: a new one for every answer."
ENGINES = "local (this process), processes, ray (a cluster), or openai (a server with the OpenAI API)."

Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, Option(help="auto, float32, bfloat16, float16.")]
Weights = Annotated[str | None, Option(help="fp8: quantise the layers. Default: as they are stored.")]
Chat = Annotated[bool, Option("--chat", help="Wrap the prompt in the model's chat template.")]
RecipeName = Annotated[str | None, Option(parser=as_name_or_path, metavar="NAME|PATH", help=RECIPES)]
Length = Annotated[str | None, Option(help=LENGTHS)]
Temperature = Annotated[float | None, Option(help="0 chooses the most probable token.")]
Seed = Annotated[int, Option(callback=as_seed, help="Seed of everything random.")]
CalibrationFile = Annotated[str, Option(help="A file of lastword calibrate, auto (of the model), or none.")]
InterpretationName = Annotated[str, Option(help=INTERPRETATIONS)]
Ends = Annotated[str, Option(help="End tokens: document (the paper), or any (those of a turn, too).")]
BatchSize = Annotated[int, Option("--rows", help="Prompts decoded at the same time.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object, for scripts.")]


@dataclass(frozen=True)
class PromptOptions:
    """The options for the prompt and for the output format."""

    prompt: Annotated[str | None, Argument(help="The prompt. Without it or with '-': standard input.")] = None
    chat: Chat = False
    ids: Annotated[bool, Option("--ids", help=IDS)] = False
    exceed_max_seq_len: Annotated[bool, Option("--exceed-max-seq-len", help=EXCEED)] = False
    as_json: Json = False

    def read(self) -> Any:
        """Return the prompt: text, messages with --chat, or token ids with --ids."""
        if self.chat and self.ids:
            raise PromptError("--ids and --chat were given; give text with --chat, or token ids without it")
        text = self.prompt
        if text is None or text == "-":
            if sys.stdin.isatty():
                raise PromptError("no prompt was given; write one as an argument or pipe it in")
            try:
                text = read_text(sys.stdin.read).rstrip("\n")
            except (OSError, ValueError) as error:
                raise PromptError(
                    f"standard input cannot be read ({error}); give the prompt as an argument, or as UTF-8 text"
                ) from error
        if not text:
            raise PromptError("the prompt is empty; write one as an argument or pipe it in")
        check_utf8(text, "the prompt")
        if self.chat:
            return [{"role": "user", "content": text}]
        try:
            return [int(word) for word in text.replace(",", " ").split()] if self.ids else text
        except ValueError as error:
            raise PromptError(
                f"--ids takes whole numbers only ({error}); write them as in '5 42 17', or leave --ids out"
            ) from error


@dataclass(frozen=True)
class ModelOptions:
    """The options that select a model and set how it is loaded."""

    model: Annotated[str | None, Option("--model", "-m", help=f"{MODELS} {DEFAULTS}")] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    weights: Weights = None

    @property
    def name(self) -> str:
        """The name of the model, or of the default model."""
        return self.model or DEFAULT_MODEL

    def source(self, calibration: str = "none", default: str = DEFAULT_MODEL) -> ModelSource:
        """Return the source from which an engine loads the model; without --model, that is `default`."""
        from lastword.engines.local import ModelSource

        file = None if calibration == "none" else calibration
        return ModelSource(self.model or default, self.device, self.dtype, file, self.weights)


@dataclass(frozen=True)
class RecipeOptions:
    """The options that select a recipe and override its parts."""

    recipe: RecipeName = None
    length: Length = None
    unmask: Annotated[str | None, Option(help="most-confident (the default), threshold:0.9 ...")] = None
    commit: Annotated[str | None, Option(help="never (the default), prophet, stable-margin.")] = None
    cache: Annotated[str | None, Option(help="none (the default), prefix, dual, feature.")] = None
    block: Annotated[int | None, Option(help="Slots per block. Default: no blocks, or 32 if needed.")] = None

    @property
    def parts(self) -> dict[str, Any]:
        """The values that override parts of the recipe; None leaves a part unchanged."""
        return {name: getattr(self, name) for name in ("length", "unmask", "commit", "cache", "block")}


@dataclass(frozen=True)
class SamplingOptions(RecipeOptions):
    """The options of a recipe, including those for sampling."""

    temperature: Temperature = None
    top_p: Annotated[float | None, Option(help="Sample from this share of the probability.")] = None
    top_k: Annotated[int | None, Option(help="Sample from this number of tokens.")] = None
    guidance: Annotated[float | None, Option(help="Classifier-free guidance scale; 0 is off.")] = None

    def build(self) -> lastword.Recipe:
        """Return the recipe with the chosen parts and sampling settings."""
        recipe = read_recipe(self.recipe).with_choices(**self.parts)
        names = ("temperature", "top_p", "top_k", "guidance")
        changes: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(recipe, sampling=replace(recipe.sampling, **changes))


@dataclass(frozen=True)
class ChatOptions:
    """The options that apply to every answer in a conversation; None means the default of the recipe or server."""

    recipe: RecipeName = None
    length: Length = None
    temperature: Temperature = None
    seed: Annotated[int | None, Option(callback=as_seed, help=CHAT_SEED)] = None
    max_tokens: Annotated[int | None, Option(min=1, help="Maximum number of tokens of an answer.")] = None

    def build(self) -> lastword.Recipe:
        """Return the recipe for a chat with a model in this process."""
        return SamplingOptions(self.recipe, self.length, temperature=self.temperature).build()


LOCAL, PROCESSES, RAY, OPENAI = "local", "processes", "ray", "openai"
# The engines that support an option; with any other engine the option is rejected.
SUPPORTED = {"workers": (PROCESSES, RAY, OPENAI), "threads": (PROCESSES, RAY), "address": (RAY,), "base_url": (OPENAI,)}


@dataclass(frozen=True)
class EngineOptions:
    """The options that select an engine; None means the engine's default."""

    engine: Annotated[str, Option(help=ENGINES)] = LOCAL
    workers: Annotated[int | None, Option(help="Processes, actors or requests at once.")] = None
    threads: Annotated[int | None, Option(help="Threads of a worker on a CPU. Default: 1.")] = None
    address: Annotated[str | None, Option(help="Ray cluster: auto, HOST:PORT, or local.")] = None
    base_url: Annotated[str | None, Option(help="Server, such as http://127.0.0.1:8000/v1.")] = None

    def __post_init__(self) -> None:
        check_choice("--engine", "engine", self.engine, LOCAL, PROCESSES, RAY, OPENAI)
        for name, engines in SUPPORTED.items():
            value = getattr(self, name)
            if value is not None and self.engine not in engines:
                raise SettingError(
                    f"--{name.replace('_', '-')} {value} was given with --engine {self.engine}, which does "
                    f"not use it; give --engine {' or '.join(engines)}, or leave it out"
                )
        if self.engine == OPENAI and not self.base_url:
            raise SettingError("--engine openai needs --base-url, such as --base-url http://127.0.0.1:8000/v1")

    def open(self, source: ModelSource) -> Engine:
        """Return an engine for the model, which the caller must close; its workers start on first use."""
        from lastword.engines import LocalEngine, OpenAIEngine, ProcessWorkers, RayWorkers, WorkerPool

        if self.engine == PROCESSES:
            return WorkerPool(ProcessWorkers(source, self.workers, threads=self.threads))
        if self.engine == RAY:
            return WorkerPool(RayWorkers(source, self.workers, address=self.address, threads=self.threads))
        if self.engine == OPENAI:
            if source.weights is not None:
                raise SettingError(
                    f"--weights {source.weights} was given with --engine openai, whose server has loaded "
                    "its weights: leave it out, or give it to the server"
                )
            return OpenAIEngine(str(self.base_url), source.name, requests=self.workers)
        return LocalEngine(source.load())


def read_recipe(text: str | None) -> lastword.Recipe:
    """Return the recipe with this name or in this JSON file; None means the default recipe."""
    from lastword.recipe import registry

    if text is None or text in registry.RECIPES:
        return lastword.Recipe.coerce(text)
    path = as_path(text)
    if text.isidentifier() and not path.exists():
        return lastword.Recipe.named(text)
    try:
        with path.open(encoding="utf-8") as file:
            content = read_text(file.read)
    except (OSError, ValueError) as error:
        names = ", ".join(registry.RECIPES)
        raise RecipeError(f"the recipe file cannot be read ({error}); give a JSON file, or a name: {names}") from error
    return lastword.Recipe.from_json(content)


def read_text(read: Callable[[int], str]) -> str:
    """Return the text that `read` gives; raise ValueError above MAX_CHARACTERS, since a pipe may be endless."""
    text = read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    return text


def check_utf8(text: str, name: str) -> None:
    """Raise PromptError if the text has surrogates, which stand for bytes that are not UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError(f"{name} contains bytes that are not UTF-8; give UTF-8 text")
