"""docs/walk.md names the files a prompt passes, in order; a real call is followed and compared."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "walk.md"

# In an interpreter of its own: the shape checks of the test run look at models before `generate` does.
FOLLOW = """
import sys
from pathlib import Path

import pytest
import lastword

package = Path(lastword.__file__).parent
model = lastword.load("tiny-llada-base", device="cpu")
question = "Problem: Solve for n: 4n + 3 = 35. Be brief.\\nSolution:\\n"
lastword.generate(model, question)  # what is imported on first use is imported now
called = {}

def notice(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(package)):
        called.setdefault(Path(code.co_filename).relative_to(package).as_posix())

sys.setprofile(notice)
lastword.generate(model, question)
sys.setprofile(None)
print(*called)
"""


@pytest.mark.full
def test_the_walk_is_that_of_a_real_call():
    listed = list(dict.fromkeys(re.findall(r"`([a-z_/]+\.py)`", PAGE.read_text())))
    run = subprocess.run([sys.executable, "-c", FOLLOW], capture_output=True, text=True, check=True)
    assert listed == run.stdout.split()
