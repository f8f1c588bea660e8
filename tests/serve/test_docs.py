"""docs/use/serve.md and docs/use/operate.md say what is true: examples run, tables are complete."""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from lastword.cli import COMMANDS, main
from lastword.engines.local import ModelSource
from lastword.recipe.recipe import Recipe
from lastword.serve import protocol as invalid
from lastword.serve import request as errors
from lastword.serve.protocol import AnswerDetails, ChatRequest, CompletionRequest
from lastword.serve.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
CALL, OPERATE = (ROOT / "docs" / "use" / name for name in ("serve.md", "operate.md"))
ADDRESS = "http://127.0.0.1:8000"

# An example, what the page says it prints, and whether the page says that it is not run.
BLOCK = re.compile(
    r"(?P<skipped><!-- not run: [^\n]+ -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


def blocks(language: str, *, skipped: bool) -> list[tuple[str, str | None]]:
    found = [match for page in (CALL, OPERATE) for match in BLOCK.finditer(page.read_text())]
    return [
        (match["code"], match["printed"])
        for match in found
        if match["language"] == language and bool(match["skipped"]) == skipped
    ]


@pytest.mark.parametrize(("code", "printed"), blocks("python", skipped=False))
def test_python_examples_run_and_print_what_is_shown(code, printed, live_instruct):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code.replace(ADDRESS, live_instruct.url), "example", "exec"), {})
    assert out.getvalue().strip()
    if printed is not None:
        assert out.getvalue() == printed


@pytest.mark.parametrize("block", [code for code, _ in blocks("bash", skipped=False)])
def test_commands_run(block, live_instruct):
    if shutil.which("curl") is None:
        pytest.skip("needs the program curl")
    ours = f'lastword() {{ "{sys.executable}" -m lastword "$@"; }}; curl() {{ command curl -f "$@"; }}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{ours}\n{block.replace(ADDRESS, live_instruct.url)}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_what_is_not_run_is_python_all_the_same():
    left = blocks("python", skipped=True)
    assert len(left) == 2
    for code, _ in left:
        compile(code, "example", "exec")


def served() -> list[str]:
    text = CALL.read_text() + OPERATE.read_text()
    return re.findall(r"^(?:ExecStart=\S*/)?(lastword serve .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("line", served())
def test_servers_are_started_with_options_that_there_are(line, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.chdir(tmp_path)
    Path("keys.txt").write_text("secret\n")
    monkeypatch.setattr("lastword.engines.local.ModelSource.load", lambda source: source)
    monkeypatch.setattr("lastword.serve.app.serve", lambda model, **given: seen.update(given))
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert ("0.0.0.0" in line) == bool(seen["keys"])


def test_a_server_is_given_what_its_options_say(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr("lastword.engines.local.ModelSource.load", lambda source: source)
    monkeypatch.setattr("lastword.serve.app.serve", lambda model, **given: seen.update(given, model=model))
    line = "lastword serve --port 0 --model toy --recipe fast --weights fp8 --calibration none --slots 3"
    line += " --columns 4 --queue 5 --body 6 --prompt 7 --answers 8 --horizon 9 --seconds 10 --reading 11"
    monkeypatch.setattr(sys, "argv", f"{line} --drain 12 --named-recipes --dtype float32".split())
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert seen["model"] == ModelSource("toy", "auto", "float32", None, "fp8")
    assert seen["limits"] == ServerSettings(
        slots=3, columns=4, queue=5, body=6, prompt=7, answers=8, horizon=9, seconds=10.0, reading=11.0,
        drain=12.0, recipes=False, recipe=Recipe.named("fast"),
    )  # fmt: skip


def test_three_ways_to_start_are_shown():
    assert len(served()) == 3


def test_every_limit_is_listed():
    listed = set(re.findall(r"^\| `--([a-z-]+)` \|", OPERATE.read_text(), re.MULTILINE))
    others = {"model", "name", "host", "port", "key-file", "without-key"}
    others |= {
        "device",
        "dtype",
        "weights",
        "calibration",
        "engine",
        "replicas",
        "address",
        "cpus",
        "gpus",
        "routing",
        "work",
        "up",
        "down",
    }
    options = {
        {"named_only": "named-recipes"}.get(name, name).replace("_", "-")
        for name in inspect.signature(COMMANDS["serve"]).parameters
    }
    assert listed == options - others


def test_every_metric_is_listed():
    from lastword.serve.metrics import PrometheusMetrics

    table = OPERATE.read_text().split("## Metrics")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    listed = {name.partition("{")[0] for row in rows for name in re.findall(r"`(.*?)`", row.split("|")[1])}
    kinds = re.findall(rb"^# TYPE lastword:(\w+) (\w+)", PrometheusMetrics().text(), re.MULTILINE)
    assert listed == {name.decode() for name, _ in kinds if not name.endswith(b"_created")}


def test_every_error_is_listed():
    told = CALL.read_text().split("**Errors**")[1]
    kinds = [
        kind
        for module in (errors, invalid)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, errors.ServerError)
    ]
    for kind in kinds:
        assert f"`{kind.code}`" in told
        assert str(kind.status) in told


def test_every_field_of_ours_is_listed():
    table = CALL.read_text().split("## How we differ")[1]
    for field in AnswerDetails.model_fields:
        assert f"`{field}`" in table
    told = {"messages", "prompt", "model", "stream", "stream_options"}  # as elsewhere
    for kind in (ChatRequest, CompletionRequest):
        for field, known in kind.model_fields.items():
            refused = any(type(own).__name__ == "Unsupported" for own in known.metadata)
            assert refused or field in told or f"`{field}`" in table, field
