"""Options shared by several commands, and the prompts, recipes and engines that are built from them.

A command has a group of options as one parameter, whose type is a dataclass of this module.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import Argument, BadParameter, CallbackParam, Option

import lastword
from lastword.errors import LastwordError, PromptError, RecipeError, SettingError
from lastword.io.files import check_target, file_errors, user_path
from lastword.validation import MAX_COUNT, MAX_SEED, MAX_SLOTS, MIN_SEED, check_choice, check_int

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


def counted(*names: str, maximum: int = MAX_SLOTS, **settings: Any) -> Any:
    """Return a typer option whose value is a whole number from 1 to `maximum`; its error names the option."""

    def check(parameter: CallbackParam, value: int | None) -> int | None:
        if value is not None and not 1 <= value <= maximum:
            raise SettingError(f"{parameter.opts[0]} {value} was given; give a whole number from 1 to {maximum}")
        return value

    return Option(*names, callback=check, **settings)


def as_timeout(value: float | None) -> float | None:
    """Return a number of seconds unchanged; raise SettingError unless it is above 0."""
    if value is not None and not 0 < value < math.inf:
        raise SettingError(f"--timeout {value:g} was given; give a number of seconds above 0")
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


MODELS = "Checkpoint folder, .gguf file, hub name or embedded model (see lastword models)."
DEFAULTS = f"Default: {DEFAULT_MODEL}, or {CHAT_MODEL} for chat and serve."
RECIPES = "Recipe: careful (default), fast, paper, fixed, or a JSON file. Other options override its parts."
LENGTHS = (
    "Length policy: default:512 (predicted, at most 512 slots), survival (as in the paper), fixed:256, daedal ... "
    "Default: the recipe's."
)
EXCEED = "Allow prompt and answer together to be longer than the model's context."
INTERPRETATIONS = (
    "Interpretation of the end-token probabilities: auto, hazard (as in the paper), boundary, ended-by, turn-end ..."
)
ENDS = "End tokens that count: document (as in the paper), or any (end-of-turn tokens as well)."
CALIBRATIONS = "Calibration file; auto: the file saved for the model, if there is one; none: no file."
SEED = "Seed of all random choices."
BATCH_SIZES = "Number of answers decoded at the same time."
NAMES = "Name of the model in requests. Default: the value of --model."
ENGINES = "Where answers are decoded: local (this process), processes, ray (a cluster), or openai (a server)."
ENGINE_TIMEOUT = (
    "Seconds that a worker may take for its prompts, or a server for an answer. Default: ten times the predicted "
    "seconds, at least 60; for a server 3600."
)
WORKERS = (
    "Number of processes, Ray actors, or simultaneous requests to a server. Default: one per GPU or core; for a "
    "server, --batch-size."
)
ADDRESS = (
    "Ray cluster: auto, HOST:PORT, or local (a new one). Default: RAY_ADDRESS, else the one on this machine, else a "
    "new one."
)
LIMITS = "Use the first N prompts (eval and drift: of each task). Default: all."
THREADS = "CPU threads, of each worker if there are any. Default: 1 for workers and embedded models, else one per core."
IMPORTS = "Import this Python module first, for example one that registers parts. Repeatable."

Device = Annotated[str, Option(help="Device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, Option(help="Dtype: auto, float32, bfloat16 or float16.")]
Quantization = Annotated[
    str | None, Option(help="fp8 (GPUs) or int8 (CPUs): quantise linear layers. Default: as stored.")
]
Threads = Annotated[int | None, counted(maximum=1024, help=THREADS)]
Chat = Annotated[bool | None, Option(help="Apply the chat template to text. Default: if the model has one.")]
RecipeName = Annotated[str | None, Option(parser=as_name_or_path, metavar="NAME|PATH", help=RECIPES)]
Length = Annotated[str | None, Option(help=LENGTHS)]
Temperature = Annotated[
    float | None, Option(help="Sampling temperature; 0 takes the most likely token. Default: the recipe's.")
]
TopP = Annotated[
    float | None, Option(help="Sample from the most likely tokens with this total probability. Default: the recipe's.")
]
TopK = Annotated[int | None, Option(help="Sample from this number of most likely tokens. Default: the recipe's.")]
MaxNewTokens = Annotated[
    int | None, counted(maximum=MAX_COUNT, help="Maximum number of tokens of an answer; it does not size the canvas.")
]
Stop = Annotated[list[str] | None, Option(metavar="<str>", help="Stop string: the answer ends before it. Repeatable.")]
Seed = Annotated[int, Option(callback=as_seed, help=SEED)]
CalibrationFile = Annotated[str, Option(help=CALIBRATIONS)]
InterpretationName = Annotated[str, Option(help=INTERPRETATIONS)]
Ends = Annotated[str, Option(help=ENDS)]
BatchSize = Annotated[int, counted(help=BATCH_SIZES)]
Limit = Annotated[int | None, counted(maximum=MAX_COUNT, help=LIMITS)]
Slots = Annotated[int | None, counted(help="Number of slots (masks) after the prompt. Default: the model's.")]
Timeout = Annotated[
    float | None, Option(callback=as_timeout, help="Seconds to wait for an answer of a server. Default: 3600.")
]
Imports = Annotated[list[str] | None, Option("--import", metavar="MODULE", help=IMPORTS)]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True)
class PromptOptions:
    """The options for the prompt and for the output format."""

    PANEL: ClassVar[str] = "Prompt"

    prompt: Annotated[
        str | None, Argument(help="The prompt. If it is missing or '-', it is read from standard input.")
    ] = None
    chat: Chat = None
    ids: Annotated[bool, Option("--ids", help="Read the prompt as token ids, separated by spaces or commas.")] = False
    exceed_max_seq_len: Annotated[bool, Option("--exceed-max-seq-len", help=EXCEED)] = False
    as_json: Json = False

    def read(self) -> Any:
        """Return the prompt: text, or token ids with --ids."""
        if self.chat and self.ids:
            raise PromptError("--ids and --chat were given; give text with --chat, or token ids without it")
        text = self.prompt
        if text is None or text == "-":
            if sys.stdin.isatty():
                raise PromptError("no prompt was given; write one as an argument or pipe it in")
            advice = "give the prompt as an argument, or as UTF-8 text"
            with file_errors("standard input cannot be read", advice, PromptError):
                text = read_text(sys.stdin.read).rstrip("\n")
        if not text:
            raise PromptError("the prompt is empty; write one as an argument or pipe it in")
        check_utf8(text, "the prompt")
        try:
            return [int(word) for word in text.replace(",", " ").split()] if self.ids else text
        except ValueError as error:
            raise PromptError(f"--ids takes whole numbers only ({error}); write '5 42', or leave --ids out") from error


@dataclass(frozen=True)
class ModelOptions:
    """The options that select a model and set how it is loaded."""

    PANEL: ClassVar[str] = "Model"

    model: Annotated[str | None, Option("--model", "-m", help=f"{MODELS} {DEFAULTS}")] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization = None
    threads: Threads = None

    @property
    def name(self) -> str:
        """The name of the model, or of the default model."""
        return self.model or DEFAULT_MODEL

    def source(self, calibration: str = "none", default: str = DEFAULT_MODEL) -> ModelSource:
        """Return the source from which an engine loads the model; without --model, that is `default`."""
        from lastword.engines.local import ModelSource

        file = None if calibration == "none" else calibration
        return ModelSource(self.model or default, self.device, self.dtype, file, self.quantization)


@dataclass(frozen=True)
class CommonRecipeOptions:
    """The options that select a recipe, its length policy and its sampling; None means the recipe's own."""

    recipe: RecipeName = None
    length: Length = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None

    def build(self) -> lastword.Recipe:
        """Return the recipe with the chosen parts and sampling settings."""
        return self.override(read_recipe(self.recipe))

    def override(self, recipe: lastword.Recipe) -> lastword.Recipe:
        """Return a recipe with the chosen parts and sampling settings; options that are not given keep its own."""
        given = vars(self)
        parts = {name: given.get(name) for name in ("length", "unmask", "commit", "cache", "block")}
        sampling = {name: given.get(name) for name in ("temperature", "top_p", "top_k", "guidance")}
        return recipe.with_choices(**parts).with_sampling(**sampling)


@dataclass(frozen=True)
class RecipeOptions(CommonRecipeOptions):
    """The options that select a recipe and override its parts and sampling settings."""

    PANEL: ClassVar[str] = "Recipe"

    unmask: Annotated[
        str | None, Option(help="Unmask rule: most-confident, threshold:0.9 ... Default: the recipe's.")
    ] = None
    commit: Annotated[
        str | None, Option(help="Commit rule: never, prophet or stable-margin. Default: the recipe's.")
    ] = None
    cache: Annotated[str | None, Option(help="Cache: none, prefix, dual or feature. Default: the recipe's.")] = None
    block: Annotated[
        int | None, Option(help="Slots per block. Default: the recipe's, or 32 if a part needs blocks.")
    ] = None
    guidance: Annotated[
        float | None, Option(help="Scale of classifier-free guidance; 0 is off. Default: the recipe's.")
    ] = None


@dataclass(frozen=True)
class ChatOptions(CommonRecipeOptions):
    """The options that apply to every answer in a conversation; None means the default of the recipe or server."""

    PANEL: ClassVar[str] = "Decoding"

    max_new_tokens: MaxNewTokens = None
    stop: Stop = None
    seed: Annotated[int | None, Option(callback=as_seed, help=f"{SEED} Default: a new one for each answer.")] = None


LOCAL, PROCESSES, RAY, OPENAI = "local", "processes", "ray", "openai"
# The engines that support an option; with any other engine the option is rejected.
SUPPORTED = {
    "workers": (PROCESSES, RAY, OPENAI),
    "address": (RAY,),
    "base_url": (OPENAI,),
    "timeout": (PROCESSES, RAY, OPENAI),
}


@dataclass(frozen=True)
class EngineOptions:
    """The options that select an engine; None means the engine's default."""

    PANEL: ClassVar[str] = "Engine"

    engine: Annotated[str, Option(help=ENGINES)] = LOCAL
    workers: Annotated[int | None, Option(help=WORKERS)] = None
    address: Annotated[str | None, Option(help=ADDRESS)] = None
    base_url: Annotated[
        str | None, Option(help="URL of the server of --engine openai, such as http://host:8000/v1.")
    ] = None
    timeout: Annotated[float | None, Option(callback=as_timeout, help=ENGINE_TIMEOUT)] = None

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

    def open(self, source: ModelSource, threads: int | None = None) -> Engine:
        """Return an engine for the model, which the caller must close; its workers start on first use.

        `threads` is the number of CPU threads of each worker; `cli.errors.choose_threads` sets that of this process.
        """
        from lastword.engines import LocalEngine, OpenAIEngine, ProcessWorkers, RayWorkers, WorkerPool

        if self.engine == PROCESSES:
            return WorkerPool(ProcessWorkers(source, self.workers, threads=threads), task_timeout=self.timeout)
        if self.engine == RAY:
            actors = RayWorkers(source, self.workers, address=self.address, threads=threads)
            return WorkerPool(actors, task_timeout=self.timeout)
        if self.engine == OPENAI:
            if threads is not None:
                raise SettingError(f"--threads {threads} was given with --engine openai; give it to the server")
            check_no_loading(source, "--engine openai")
            if source.calibration not in (None, "auto"):
                raise SettingError(
                    f"--calibration {source.calibration} was given with --engine openai; give it to the server"
                )
            return OpenAIEngine(str(self.base_url), source.name, requests=self.workers, timeout=self.timeout)
        return LocalEngine(source.load())


def given_options(*groups: Any) -> list[str]:
    """Return the options of some groups that differ from their defaults, as they are written on the command line."""
    values = {field.name: (getattr(group, field.name), field.default) for group in groups for field in fields(group)}
    return [
        word
        for name, (value, default) in values.items()
        if value != default
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def check_no_loading(source: ModelOptions | ModelSource, owner: str) -> None:
    """Raise SettingError for an option of loading a model, which a server has loaded already."""
    for name, default in {"device": "auto", "dtype": "auto", "quantization": None, "threads": None}.items():
        value = getattr(source, name, default)  # a ModelSource has no threads
        if value != default:
            raise SettingError(
                f"--{name} {value} was given with {owner}, whose server has loaded its model: leave it out, or give it "
                "to the server"
            )


def read_recipe(text: str | None) -> lastword.Recipe:
    """Return the recipe with this name or in this JSON file; None means the default recipe."""
    from lastword.recipe import registry

    if text is None or text in registry.RECIPES:
        return lastword.Recipe.coerce(text)
    path = as_path(text)
    if text.isidentifier() and not path.exists():
        return lastword.Recipe.named(text)
    advice = f"give a JSON file, or a name: {', '.join(registry.RECIPES)}"
    with file_errors(f"the recipe {path} cannot be read", advice, RecipeError), path.open(encoding="utf-8") as file:
        content = read_text(file.read)
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
