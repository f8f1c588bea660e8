"""Record what Dream's authors make of the answers in `peers_dream_sanitize.json`.

`python -m tests.golden.record_dream_sanitize FOLDER`, FOLDER a checkout of DreamLM/Dream. Inputs are taken
from the file, outputs written into it. `postprocess_code.py` runs as released, one answer at a time; only
`evaluate`, from which it takes scores we do not keep, is replaced. The filter of their instruct
evaluation, loaded without the harness around it, must give the same text.
"""

import contextlib
import io
import json
import platform
import runpy
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "peers_dream_sanitize.json"


class NoScore:
    """In place of the `code_eval` metric: nothing is run."""

    def compute(self, **_: object) -> tuple[dict[str, float]]:
        return ({"pass@1": 0.0},)


def main(dream: Path) -> None:
    sys.path.insert(0, str(dream / "eval"))
    stand_in("evaluate", load=lambda name: NoScore())
    for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.humaneval"):  # folders, nothing started
        stand_in(name, __path__=[str(dream / "eval_instruct" / name.replace(".", "/"))])
    recording = json.loads(FILE.read_text())
    recording["python"] = platform.python_version()
    for case in recording["cases"]:
        case.pop("output", None)
        case.pop("raises", None)
        try:
            case["output"] = postprocessed(dream, case)
            assert filtered(case) == case["output"], case["name"]
        except (RecursionError, ValueError) as failed:
            case["raises"] = type(failed).__name__
    FILE.write_text(json.dumps(recording, indent=1) + "\n")


def stand_in(name: str, **content: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


def postprocessed(dream: Path, case: dict[str, str]) -> str:
    """The program their script for the base model scores."""
    doc: dict[str, Any] = {"task_id": 0, **case}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        samples = Path(folder) / "samples.jsonl"
        samples.write_text(json.dumps({"doc": doc, "resps": [[case["answer"]]], "target": ""}) + "\n")
        sys.argv = ["postprocess_code.py", str(samples)]
        runpy.run_path(str(dream / "eval/postprocess_code.py"), run_name="__main__")
        (completion,) = json.loads(Path(f"{samples}.cleaned").read_text())["completion"]
    return str(completion)


def filtered(case: dict[str, str]) -> str:
    """The program the filter of their `humaneval_instruct` makes."""
    from lm_eval.tasks.humaneval.utils import build_predictions_instruct

    return str(build_predictions_instruct([[case["answer"]]], [case])[0][0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
