"""docs/walk.md names the files of a prompt's and a request's way; real ones are traced and compared."""

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


FOLLOW_REQUEST = """
import asyncio
import sys
import threading
from pathlib import Path

import httpx
import lastword
from lastword.serve.app import create_app
from lastword.serve.engine import ServerEngine
from lastword.serve.serving import ModelService

package, called = Path(lastword.__file__).parent / "serve", set()

def notice(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(package)):
        called.add(Path(code.co_filename).name)

async def ask():
    engine = ServerEngine(lastword.load("toy"))
    engine.start()
    app = create_app(ModelService(engine, "toy"), name="toy")
    body = {"model": "toy", "prompt": "abc", "stream": True}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        called.clear()
        await client.post("/v1/completions", json=body)
    print(*sorted(called))
    await engine.stop()

threading.setprofile(notice)
sys.setprofile(notice)
asyncio.run(ask())
"""


def trace(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def listed(section):
    return list(dict.fromkeys(re.findall(r"`([a-z0-9_/]+\.py)`", section)))


PROMPT, REQUEST = PAGE.read_text().split("## A request of the server")


@pytest.mark.full
def test_the_walk_of_a_prompt():
    files = trace(FOLLOW)
    assert len(files) <= 35
    assert {*listed(PROMPT)} == {*files}


@pytest.mark.full
def test_the_walk_of_a_request():
    files = trace(FOLLOW_REQUEST)
    assert len(files) < 12
    assert {*listed(REQUEST)} - {"settings.py", "ray.py"} == {*files}
