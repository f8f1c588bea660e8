"""The exceptions of lastword. Each message contains what was given, what is allowed and what to do."""

from __future__ import annotations

from typing import Any


class LastwordError(Exception):
    """The base class of all errors of lastword."""


class CheckpointError(LastwordError):
    """A model folder that cannot be loaded: missing files, wrong tensors, unknown architecture."""


class PromptError(LastwordError):
    """A prompt that cannot be decoded: empty, with mask tokens, or with ids outside the vocabulary."""


class SettingError(LastwordError):
    """A setting outside its range, or settings that cannot be combined."""


class WrongTypeError(SettingError, TypeError):
    """An argument of the wrong type."""


class RecipeError(LastwordError):
    """A recipe with an unknown part or field."""


class CapacityError(LastwordError):
    """A prompt and an answer that together exceed the context length of the model."""


class NumericError(LastwordError):
    """Model output that cannot be used, such as logits that are NaN."""


class TaskError(LastwordError):
    """An evaluation task whose samples cannot be generated, loaded or scored."""


class SandboxError(LastwordError):
    """Model-written code that cannot be isolated on this machine and is therefore not run."""


class ExtraError(LastwordError):
    """An optional dependency that a feature needs and that is not installed."""


def install_command(*extras: str) -> str:
    """Return the pip commands that install optional dependencies, for the published package and for a clone."""
    names = ",".join(extras)
    return f"pip install 'lastword[{names}]', or in a clone of lastword pip install -e '.[{names}]'"


def import_extra(name: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency and return its top-level package; raise ExtraError if it is missing."""
    try:
        return __import__(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ExtraError(
            f"{purpose} needs the package {package}, which cannot be imported ({error}): {install_command(extra)}"
        ) from error


class EngineError(LastwordError):
    """Workers (processes, a cluster, a server) that cannot be started or reached, or that died."""


class FailedSamplesError(EngineError):
    """Samples of an evaluation that failed; `all_failed` if no sample has a record."""

    def __init__(self, message: str, *, all_failed: bool) -> None:
        super().__init__(message)
        self.all_failed = all_failed
