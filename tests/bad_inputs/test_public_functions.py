"""Every parameter of every public function, and every field of every part, given what does not belong there.

They run in a plain interpreter: with the shape checks of the tests on, what is wrong would not get so far.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_inputs.mutations import EXAMPLES

HERE = Path(__file__).parent


def plainly(script, *arguments, seconds):
    """What a script here prints, run as a user would."""
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_no_public_function_lets_another_error_out():
    found = plainly("public_functions.py", seconds=120)
    assert found["calls"] > 5_000
    assert found["raw"] == []


@pytest.mark.slow
@EXAMPLES
def test_any_setting_is_taken_or_refused(examples):
    found = plainly("random_settings.py", examples, seconds=10 * 60)
    assert found["raw"] == []
    assert found["taken"] > examples // 20  # so that this says something
    assert found["refused"] > examples // 4
