"""The pages on serving agree with the code: examples run, and tables of options and names are complete."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from lastword.cli import app, main
from lastword.engines.local import ModelSource
from lastword.recipe.recipe import Recipe
from lastword.serve.metrics import EngineMetrics, HttpMetrics
from lastword.serve.protocol import NOT_SUPPORTED, AnswerDetails, ChatRequest, CompletionRequest
from lastword.serve.request import ERROR_KINDS
from lastword.serve.settings import ReplicaSettings, ServerSettings

ROOT = Path(__file__).parents[2]
CALL, OPERATE, CLUSTER = (
    (ROOT / "docs" / "use" / name).read_text() for name in ("http-api.md", "operate.md", "cluster.md")
)
ADDRESS = "http://127.0.0.1:8000"
OPTIONS = {
    parameter.name: parameter.opts[0].removeprefix("--") for parameter in get_command(app).commands["serve"].params
}
GENERAL = {
    "model",
    "name",
    "host",
    "port",
    "key-file",
    "without-key",
    "device",
    "dtype",
    "quantization",
    "threads",
    "calibration",
    "import",
    "debug",
}
OF_REPLICAS = {"engine", "replicas", "address", "cpus", "gpus", "http-servers"} | {
    "target-load", "upscale-delay", "downscale-delay", "startup-timeout",
}  # fmt: skip

# An example, the output that the page shows, and whether the page says that it is not run.
BLOCK = re.compile(
    r"(?P<skipped><!-- not run: [^\n]+ -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


def blocks(language: str, *, skipped: bool) -> list[tuple[str, str | None]]:
    return [
        (match["code"], match["printed"])
        for match in BLOCK.finditer(CALL + OPERATE)
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
    functions = f'lastword() {{ "{sys.executable}" -m lastword "$@"; }}; curl() {{ command curl -f "$@"; }}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{functions}\n{block.replace(ADDRESS, live_instruct.url)}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_examples_for_clusters_are_not_run():
    assert all(re.findall(r"(<!-- not run: [^\n]+ -->\n)?```(?:bash|yaml)\n", CLUSTER))


@pytest.fixture
def started(monkeypatch):
    """Return the arguments of the server that a command line starts."""

    def start(line):
        arguments = {}

        class Server:
            def run(self):
                pass

        def create_server(model, **options):
            arguments.update(options, model=model)
            return Server()

        monkeypatch.setattr("lastword.engines.local.ModelSource.load", lambda source: source)
        monkeypatch.setattr("lastword.serve.app.create_server", create_server)
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        return arguments

    return start


SERVERS = re.findall(r"^(?:ExecStart=\S*/)?(lastword serve .*)$", CALL + OPERATE, re.MULTILINE)


@pytest.mark.parametrize("line", SERVERS)
def test_commands_that_start_a_server_have_valid_options(line, started, monkeypatch, tmp_path):
    assert len(SERVERS) == 3
    monkeypatch.chdir(tmp_path)
    Path("keys.txt").write_text("secret\n")
    assert ("0.0.0.0" in line) == bool(started(line)["keys"])


def test_settings_are_those_of_the_options(started):
    settings = ServerSettings(
        max_batch_size=3, max_reserved_tokens=4, max_queue_size=5, max_body_bytes=6, max_prompt_tokens=7,
        max_choices=8, max_horizon=9, timeout=10.0, client_timeout=11.0, drain_timeout=12.0,
        max_connections=13, max_connections_per_client=14, named_recipes_only=True, recipe=Recipe.named("fast"),
    )  # fmt: skip
    numbers = [field.name for field in fields(settings)][:12]
    options = " ".join(f"--{OPTIONS[name]} {getattr(settings, name):g}" for name in numbers)
    line = f"lastword serve --port 0 --model toy --quantization fp8 --calibration none --dtype float32 {options}"
    arguments = started(f"{line} --named-recipes --recipe fast")
    assert arguments["model"] == ModelSource("toy", "auto", "float32", None, "fp8")
    assert arguments["settings"] == settings


def test_every_option_is_listed():
    listed = set(re.findall(r"^\| `--([a-z-]+)` \|", OPERATE, re.MULTILINE))
    assert listed == {*OPTIONS.values()} - GENERAL - OF_REPLICAS
    for name in OF_REPLICAS:
        assert f"`--{name}" in CLUSTER, name
    default = ReplicaSettings()
    assert f"`--target-load` ({default.target_load:g})" in CLUSTER
    assert f"`--upscale-delay` ({default.upscale_delay:g})" in CLUSTER
    assert f"`--downscale-delay` ({default.downscale_delay:g})" in CLUSTER


def test_every_metric_is_listed():
    table = OPERATE.split("## Metrics")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    listed = {name.partition("{")[0] for row in rows for name in re.findall(r"`(.*?)`", row.split("|")[1])}
    kinds = re.findall(rb"^# TYPE lastword:(\w+) (\w+)", EngineMetrics().text() + HttpMetrics().text(), re.MULTILINE)
    assert listed == {name.decode() for name, _ in kinds if not name.endswith(b"_created")}


def test_every_error_is_listed():
    errors = CALL.split("## Errors")[1]
    for code, kind in ERROR_KINDS.items():
        assert f"`{code}`" in errors
        assert str(kind.status) in errors


def test_every_field_that_openai_lacks_is_listed():
    _, table, details, _ = re.split("^## (?:Fields|Responses|Streams)$", CALL, flags=re.MULTILINE)
    for field in AnswerDetails.model_fields:
        assert f"`{field}`" in details
    same = {"messages", "prompt", "model", "stream", "stream_options"}
    for kind in (ChatRequest, CompletionRequest):
        for name, field in kind.model_fields.items():
            is_unsupported = (field.description or "").startswith(NOT_SUPPORTED)
            assert is_unsupported or name in same or f"`{name}`" in table, name
