"""Presets: the evaluation settings of the survival paper by name, as far as the paper states them.

For base models the paper gives the shots, strict match on GSM8K and a canvas of 1024 slots; all other settings
are each model's own, here taken from the model's published evaluation code. For instruction-tuned models the
paper names only tasks: prompts, shots and scores are our choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError, TaskError
from lastword.evaluate.harness import harness_tasks, task_manager
from lastword.evaluate.tasks import Task, embedded_tasks
from lastword.policies.length.survival import Survival
from lastword.policies.unmask.rule import LowestEntropy, MostConfident
from lastword.policies.unmask.schedule import Timesteps
from lastword.recipe.recipe import Recipe
from lastword.tasks import FAMILIES

CANVAS = 1024


@dataclass(frozen=True)
class Setting:
    """Names of tasks that share a recipe and options. None: each task's default."""

    tasks: tuple[str, ...]
    recipe: Recipe
    shots: int | None = None
    score: str | None = None  # "metric,filter", as in the harness
    dream_code: bool = False  # extract programs from answers as Dream's authors do
    include_path: tuple[Path, ...] = ()  # folders with further tasks of the harness
    data: tuple[tuple[str, Path], ...] = ()  # local datasets by name of a task

    def load(self, *, split: str = "test", chat: bool = False) -> list[Task]:
        """Load the tasks with their datasets, embedded ones first."""
        embedded, others = check_tasks(self.tasks, split, self.include_path)
        if embedded and (self.shots is not None or self.score or self.dream_code):
            raise TaskError(
                f"{embedded[0]} is an embedded task, which has no few-shot examples and one score; leave out shots "
                "(--shots), score and dream_code"
            )
        tasks = embedded_tasks(embedded, split) if embedded else []
        if others:
            tasks += harness_tasks(
                others,
                shots=self.shots,
                chat=chat,
                score=self.score,
                dream_code=self.dream_code,
                include_path=self.include_path,
                data=dict(self.data),
            )
        return tasks


def check_tasks(
    names: Sequence[str], split: str = "test", include_path: tuple[Path, ...] = ()
) -> tuple[list[str], list[str]]:
    """Divide names into embedded tasks and tasks of the harness; raise TaskError for unknown names and splits."""
    embedded = [name for name in names if name in ("tiny", *FAMILIES)]
    others = [name for name in names if name not in embedded]
    if others:
        task_manager(tuple(others), include_path)
        if split != "test":
            raise TaskError(f"{others[0]} has no split {split!r}; only embedded tasks have splits other than test")
    return embedded, others


@dataclass(frozen=True)
class Preset:
    """An evaluation set-up: a model, the layout of its prompts, and the settings of each benchmark."""

    description: str
    model: str
    settings: tuple[Setting, ...]
    chat: bool | None = None  # None: use the chat template if the model has one
    bos: bool = False

    def only(self, names: tuple[str, ...]) -> Preset:
        """Return the preset with only these tasks; raise TaskError if it lacks one of them."""
        known = [name for setting in self.settings for name in setting.tasks]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise TaskError(f"the preset has no setting for {unknown[0]!r}; it has {', '.join(known)}: give these")
        settings = (replace(s, tasks=tuple(name for name in s.tasks if name in names)) for s in self.settings)
        return replace(self, settings=tuple(setting for setting in settings if setting.tasks))

    def with_recipes(self, change: Callable[[Recipe], Recipe]) -> Preset:
        """Return the preset with every recipe changed by a function."""
        settings = (replace(setting, recipe=change(setting.recipe)) for setting in self.settings)
        return replace(self, settings=tuple(settings))

    def describe(self) -> str:
        """Return the settings as lines of text, recipes as JSON."""
        layouts = {True: "chat template", False: "plain prompts", None: "chat template where it has one"}
        bos = ", begun with bos" if self.bos else ""
        lines = [self.description, f"model: {self.model}, {layouts[self.chat]}{bos}"]
        for setting in self.settings:
            shots = "the task's own shots" if setting.shots is None else f"{setting.shots} shots"
            score = f", scored by {setting.score}" if setting.score else ""
            code = ", code read as Dream's authors do" if setting.dream_code else ""
            lines.append(f"{', '.join(setting.tasks)}: {shots}{score}{code}")
            lines.append(f"  {setting.recipe.to_json()}")
        return "\n".join(lines)


def _llada(**choices: Any) -> Recipe:
    return Recipe(length=Survival(CANVAS), unmask=MostConfident(), **choices)


def _dream(temperature: float, top_p: float) -> Recipe:
    sampling = Sampling(temperature=temperature, top_p=top_p, score="draw")
    return Recipe(length=Survival(CANVAS), unmask=LowestEntropy(Timesteps()), sampling=sampling)


# The default shots of these tasks are the paper's: BBH 3, GSM8K 5, MATH 4, HumanEval 0, MBPP 3.
PRESETS = {
    "paper/llada-base": Preset(
        "LLaDA-8B-Base as in the paper: greedy, most confident first, one block.",
        "GSAI-ML/LLaDA-8B-Base",
        (Setting(("bbh", "gsm8k", "minerva_math", "humaneval", "mbpp"), _llada()),),
        chat=False,
    ),
    "paper/dream-base": Preset(
        "Dream-v0-Base-7B as in the paper: lowest entropy first, top-p 0.95, drawn at 0.2 for code.",
        "Dream-org/Dream-v0-Base-7B",
        (
            Setting(("bbh", "gsm8k", "minerva_math"), _dream(0.0, 0.95)),
            Setting(("humaneval",), _dream(0.2, 0.95), dream_code=True),
            Setting(("mbpp",), _dream(0.2, 0.95)),
        ),
        chat=False,
        bos=True,
    ),
    "paper/llada-instruct": Preset(
        "LLaDA-8B-Instruct on the paper's canvas, blocks and end-token controls of its authors; the "
        "paper does not say which prompts: shots follow the authors, tasks are the harness's nearest.",
        "GSAI-ML/LLaDA-8B-Instruct",
        (
            Setting(("gsm8k_cot",), _llada(block=8), 4, "exact_match,flexible-extract"),
            Setting(("minerva_math",), _llada(block=64), 0, "math_verify,none"),
            Setting(("humaneval_instruct",), _llada(sampling=Sampling(forbid_end=True))),
            Setting(("mbpp_instruct",), _llada(sampling=Sampling(end_last=True)), 3),
        ),
        chat=True,
    ),
    "paper/dream-instruct": Preset(
        "Dream-v0-Instruct-7B on the paper's canvas, drawn as its authors do; the paper does not say "
        "which prompts: these are the authors' tasks, without examples.",
        "Dream-org/Dream-v0-Instruct-7B",
        (
            Setting(("gsm8k_cot",), _dream(0.1, 0.9), 0, "exact_match,flexible-extract"),
            Setting(("minerva_math",), _dream(0.1, 0.9), 0, "math_verify,none"),
            Setting(("humaneval_instruct",), _dream(0.1, 0.9), dream_code=True),
            Setting(("mbpp_instruct",), _dream(0.1, 0.9), 0),
        ),
        chat=True,
    ),
}


def preset(name: str) -> Preset:
    """Return the preset with this name, or raise SettingError."""
    if name not in PRESETS:
        raise SettingError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]
