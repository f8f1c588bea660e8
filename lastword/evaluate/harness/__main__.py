"""The command line of lm-evaluation-harness with the model `lastword` and the embedded tasks (`tiny`).

The harness has no plug-ins for models. `--import MODULE` imports a module first, for example one that registers parts.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from lastword.errors import LastwordError, install_command
from lastword.recipe.registry import import_modules

try:
    import lm_eval.models  # registers the harness's own models
    import lm_eval.tasks
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise SystemExit(f"lastword: lm-evaluation-harness is not installed: {install_command('eval')}") from error

EMBEDDED_TASKS = Path(__file__).parents[1] / "harness_tasks"


class TaskManager(lm_eval.tasks.TaskManager):  # type: ignore[misc]  # the harness has no types
    """The task manager of the harness, with the embedded tasks."""

    def __init__(self, *args: Any, include_path: Any = None, **settings: Any) -> None:
        paths = include_path if isinstance(include_path, (list, tuple)) else [include_path]
        super().__init__(*args, include_path=[EMBEDDED_TASKS, *filter(None, paths)], **settings)


if __name__ == "__main__":
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--import", dest="modules", action="append", default=[])
    options, sys.argv[1:] = parser.parse_known_args()
    lm_eval.tasks.TaskManager = TaskManager
    model_registry.register("lastword", target="lastword.evaluate.harness_model:LastwordLM")
    try:
        import_modules(options.modules)
        cli_evaluate()
    except LastwordError as error:
        raise SystemExit(f"lastword: {error}") from error
