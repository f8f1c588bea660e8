"""Fixtures many tests share.

`lastword` is imported inside the fixtures: pytest reads this file before jaxtyping installs its
run-time shape checks, and a package imported earlier would go unchecked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

from tests.golden.shards import cut as cut_shards

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it brings

# How the reason of a skip begins that installing something would have avoided; others (a kernel, a GPU,
# a dataset) are a machine's own.
MISSING = ("needs the program ", "needs the package ", "could not import ")

# The tests that run with shape checks: they try every part. The others decode in the same way, and decoding with checks
# takes several times as long.
SHAPES_CHECKED = tuple(
    f"tests/{path}"
    for path in (
        *("canvas", "laws", "policies", "recipe", "survival", "test_generation"),
        *("decoding/test_prediction", "decoding/test_sampling", "decoding/test_static_shapes"),
    )
)

settings.register_profile("tests", max_examples=50, deadline=None)
settings.load_profile("tests")


def pytest_configure(config) -> None:
    # Tests, and the processes that they start, save calibrations here, and read none of whoever runs them.
    home = tempfile.TemporaryDirectory(prefix="lastword-home-")
    config.add_cleanup(home.cleanup)
    os.environ["LASTWORD_HOME"] = home.name
    cut_shards()
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    checked = item.nodeid.startswith(SHAPES_CHECKED) and item.get_closest_marker("full") is None
    jaxtyping.config.update("jaxtyping_disable", not checked)
    try:
        return (yield)
    finally:
        jaxtyping.config.update("jaxtyping_disable", True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _without_excuse((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _without_excuse((yield))


def _without_excuse(report):
    """With LASTWORD_NO_SKIPS=1, a skip that a missing program or package caused is a failure."""
    if os.environ.get("LASTWORD_NO_SKIPS") == "1" and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if reason.startswith(MISSING):
            report.outcome = "failed"
            report.longrepr = f"skipped where nothing may be missing: {reason}"
    return report


PLAIN = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch, lastword
from pathlib import Path
from types import SimpleNamespace
from lastword.recipe.text import parse_part as part
from lastword.recipe.recipe import Recipe
toy, golden = lastword.load("toy"), Path(sys.argv[1])
for line in sys.stdin:
    outcome = {}
    for code in json.loads(line):
        try:
            eval(code)
            outcome[code] = "no error", ""
        except lastword.LastwordError as error:
            outcome[code] = type(error).__name__, str(error)
        except Exception as error:
            outcome[code] = f"raw {type(error).__name__}: {error}", ""
    print(json.dumps(outcome), flush=True)
"""


@pytest.fixture(scope="session")
def golden():
    return Path(__file__).parent / "golden"


@pytest.fixture
def unchecked(monkeypatch):
    """Switch the shape checks off."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def names_restored(monkeypatch):
    """Parts that a test registers are forgotten after it."""
    from lastword.recipe.registry import PARTS

    for axis, parts in PARTS.items():
        monkeypatch.setitem(PARTS, axis, dict(parts))


@pytest.fixture(scope="session")
def toy():
    import lastword

    return lastword.load("toy")


@pytest.fixture(scope="session")
def llada(golden):
    import lastword

    return lastword.load(golden / "llada-tiny", device="cpu")


@pytest.fixture(scope="session")
def dream(golden):
    import lastword

    return lastword.load(golden / "dream-tiny", device="cpu")


@pytest.fixture(scope="session")
def ids():
    """A vocabulary of eight: six words, the mask, the end."""
    from lastword.canvas.tokens import TokenIds

    return TokenIds(mask=6, end=7, pad=7, vocab_size=8)


@pytest.fixture(scope="session")
def predicted(ids):
    """A Prediction from hand-made logits, one [T, V] tensor per row; prompts are `prompt` words."""
    from lastword.canvas.canvas import Canvas
    from lastword.canvas.columns import Columns
    from lastword.decoding.prediction import Prediction
    from lastword.decoding.sampling import RowGenerators, Sampling

    def build(*rows, sampling=None, seeds=None, prompt=1):
        horizon = torch.tensor([len(row) for row in rows])
        canvas = Canvas.blank([[0] * prompt for _ in rows], horizon, ids)
        widest = int(horizon.max())
        padded = [torch.cat((row, row[-1:].expand(widest - len(row), -1))) for row in rows]
        return Prediction.from_logits(
            torch.stack(padded).float(),
            Columns.from_mask(canvas.answer),
            canvas,
            sampling or Sampling(),
            RowGenerators(seeds or range(len(rows))),
        )

    return build


@pytest.fixture(scope="session")
def sure():
    """Logits [T, 8] whose best word, word 0, has exactly the given probabilities."""

    def build(*chances):
        best = torch.tensor(chances, dtype=torch.float64)
        rest = ((1 - best) / 7)[:, None].expand(-1, 7)
        return torch.cat((best[:, None], rest), dim=1).log()

    return build


@pytest.fixture(scope="session")
def plain_python(golden):
    """Starts an interpreter without shape checks, for expressions to be evaluated in."""
    started = []

    def start(**environment):
        process = subprocess.Popen(
            [sys.executable, "-c", PLAIN, str(golden)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)

        def outcomes(expressions, *, with_messages=False):
            """The class of the error by expression, or the class and what it says."""
            process.stdin.write(json.dumps(list(expressions)) + "\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            if with_messages:
                return {code: tuple(outcome) for code, outcome in found.items()}
            # A value of the wrong kind is a setting that is wrong: most tests do not tell the two apart.
            return {code: kind.replace("WrongTypeError", "SettingError") for code, (kind, _) in found.items()}

        return outcomes

    yield start
    for process in started:
        process.communicate()


@pytest.fixture(scope="session")
def in_plain_python(plain_python):
    """What expressions raise in an interpreter without shape checks, as a user runs them.

    With the checks on, a value of the wrong type is stopped by the checker before our own code can
    refuse it, so only a plain interpreter shows whether it does.
    """
    return plain_python()


@pytest.fixture(scope="session")
def tokenizer():
    """The training recipe's tokenizer, trained on a smaller sample to save time."""
    pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    from training.tokenizer import LLADA, train

    return train(LLADA, sample=400)


@pytest.fixture
def checkpoint(golden, tmp_path):
    """A copy of a golden checkpoint, its config changed; a field set to `...` is removed."""

    def build(name="llada-tiny", **changes):
        folder = tmp_path / name
        shutil.copytree(golden / name, folder)
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        config = {key: value for key, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return build
