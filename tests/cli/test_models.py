"""`lastword models` as a user calls it."""

import json

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.models.load import BUILT_IN
from lastword.models.registry import PUBLISHED, KnownModel

cli = __import__("sys").modules["lastword.cli.catalog"]


@pytest.fixture
def listed(monkeypatch, tmp_path):
    def run(*words, columns=80):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(app, ["models", *words])

    return run


def test_every_name_is_whole_in_80_columns(listed):
    done = listed()
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    for name in (*BUILT_IN, *(one.name for one in PUBLISHED)):
        assert f"{name} " in done.output
    assert "…" not in done.output
    assert "16 GB to fetch" in done.output


def test_json_is_one_object(listed):
    done = listed("--json")
    models = json.loads(done.stdout)["models"]
    assert [one["name"] for one in models] == [*cli_order()]
    assert models[0]["default_max_new_tokens"] == 256
    assert models[-1]["download_bytes"] == 2 * models[-1]["parameters"]


def cli_order():
    from lastword.embedded import EMBEDDED

    return (*EMBEDDED, "toy", *(one.name for one in PUBLISHED))


@pytest.mark.parametrize(
    ("local", "local_bytes", "words"),
    [
        ("no", 0, "15 GB to fetch"),
        ("partial", 3_000_000, "in part, 3 MB"),
        ("complete", 15_200_000_000, "yes, 15 GB"),
        ("complete", 0, "yes"),
    ],
)
def test_where_a_model_is(local, local_bytes, words):
    model = KnownModel("a/b", "Dream", "hub", 7_600_000_000, local=local, local_bytes=local_bytes)
    assert cli.where(model) == words


def test_what_is_broken_is_told_on_standard_error(listed, tmp_path):
    name = PUBLISHED[0].name
    folder = tmp_path / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{")
    done = listed()
    assert done.exit_code == 0
    assert f"lastword: {name}: " in done.stderr
    assert "in part" in done.stdout
