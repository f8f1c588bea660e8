"""Every error a user can meet. Each message says what was given, what is allowed and what to do."""

from __future__ import annotations


class LastwordError(Exception):
    """The parent of them all: catch this one to catch whatever lastword refuses."""


class CheckpointError(LastwordError):
    """A model folder that cannot be loaded: missing files, wrong tensors, unknown architecture."""


class PromptError(LastwordError):
    """A prompt that cannot be decoded from: empty, holding masks, ids outside the vocabulary."""


class SettingError(LastwordError):
    """A setting outside its range, or settings that cannot go together."""


class WrongTypeError(SettingError, TypeError):
    """Something of another kind than belongs there: no model, no recipe, a text for a number."""


class RecipeError(LastwordError):
    """A recipe that names a part or a field we do not have."""


class CapacityError(LastwordError):
    """Prompt and answer together need more positions than the model was trained for."""


class NumericError(LastwordError):
    """The model returned something no decision can be taken on, such as NaN logits."""


class RankError(LastwordError):
    """Ranks of one model that do not do the same: other calls, other models, or one of them is gone."""


class TaskError(LastwordError):
    """A task that cannot be generated, loaded or scored here."""


class SandboxError(LastwordError):
    """Model-written code that cannot be kept in here, and so is not run."""


class ExtraError(LastwordError):
    """An optional dependency is needed and not installed."""


class EngineError(LastwordError):
    """Workers that cannot be started, reached or kept: processes, a cluster, a server."""
