"""`lastword models` as a user calls it."""

import json

import pytest

from lastword.cli.catalog import location
from lastword.embedded import EMBEDDED
from lastword.models.registry import PUBLISHED, KnownModel

NAMES = [*EMBEDDED, "toy", *(model.name for model in PUBLISHED)]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty folder of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


def test_every_name_is_whole_in_80_columns(command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured output for a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, _ = command("models")
    assert code == 0
    assert all(f"{name} " in out for name in NAMES)
    assert "…" not in out
    assert "16 GB to fetch" in out


def test_json_is_one_object(command):
    models = json.loads(command("models", "--json")[1])["models"]
    assert [model["name"] for model in models] == NAMES
    assert models[0]["default_max_new_tokens"] == 256
    assert models[-1]["download_bytes"] == 2 * models[-1]["parameters"]


@pytest.mark.parametrize(
    ("local", "size", "words"),
    [
        ("no", 0, "15 GB to fetch"),
        ("partial", 3_000_000, "in part, 3 MB"),
        ("complete", 15_200_000_000, "yes, 15 GB"),
        ("complete", 0, "yes"),
    ],
)
def test_the_location_of_a_model(local, size, words):
    model = KnownModel("a/b", "Dream", "hub", 7_600_000_000, local=local, local_bytes=size)
    assert location(model) == words


def test_a_broken_checkpoint_is_reported_on_standard_error(command, tmp_path):
    name = PUBLISHED[0].name
    folder = tmp_path / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "config.json").write_text("{")
    code, out, err = command("models")
    assert code == 0
    assert f"lastword: {name}: " in err
    assert "in part" in out
