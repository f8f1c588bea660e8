"""What the boundary checks costs a call, never a pass."""

import json
import subprocess
import sys

# In an interpreter of its own: the wrappers of the shape checks are calls as well.
COUNT = """
import json, sys
from pathlib import Path
import lastword

package = Path(lastword.__file__).parent
files = ("validation.py", "prompts.py", "io/schema.py", "io/files.py")
boundary = {str((package / name).resolve(strict=True)) for name in files}
model = lastword.load("tiny-llada-base", device="cpu")

def calls(slots):
    found = 0

    def notice(frame, event, argument):
        nonlocal found
        found += event == "call" and frame.f_code.co_filename in boundary

    sys.setprofile(notice)
    answer = lastword.generate(model, "abc", length=f"fixed:{slots}", on_step=lambda step: None)
    sys.setprofile(None)
    return answer.cost.forward_passes, found

calls(2)  # what is imported on first use is imported now
print(json.dumps([calls(2), calls(40)]))
"""


def test_no_check_is_made_in_a_pass():
    run = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    (few, called), (many, still) = json.loads(run.stdout)
    assert (few, many) == (2, 40)
    assert 10 < called == still
