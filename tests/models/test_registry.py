"""Models by name: what comes along, what is published, and what a made-up cache has of it."""

import json
import os
import shutil

import pytest

from benchmarks.passes.shapes import DREAM_7B, LLADA_8B
from lastword.embedded import EMBEDDED, FOLDER
from lastword.models.load import BUILT_IN, load
from lastword.models.registry import PUBLISHED, known_models

NAME = "GSAI-ML/LLaDA-8B-Instruct"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def listed(cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        return {one.name: one for one in known_models()}


@pytest.fixture
def cached(tmp_path):
    """A hub's cache with one checkpoint, laid out as the hub does: links to blobs. The tiny one stands in."""
    repository = tmp_path / f"models--{NAME.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    for file in sorted((FOLDER / "tiny-llada-instruct").iterdir()):
        blob = repository / "blobs" / f"blob-{file.name}"
        shutil.copyfile(file, blob)
        os.symlink(os.path.relpath(blob, snapshot), snapshot / file.name)
    return tmp_path, snapshot


def test_every_built_in_name_is_listed_as_it_loads(tmp_path):
    found = listed(tmp_path)
    assert {name for name, one in found.items() if one.source == "embedded"} == {*BUILT_IN}
    assert {*EMBEDDED} < {*found}
    for name in ("tiny-llada-base", "tiny-dream-instruct"):
        model, one = load(name), found[name]
        assert one.parameters == sum(part.numel() for part in model.network.parameters())
        assert (one.default_max_new_tokens, one.max_seq_len) == (model.default_max_new_tokens, model.max_seq_len)
        assert one.chat == (model.tokenizer.chat_template is not None)
        assert (one.local, one.error, one.family) == ("complete", None, model.architecture.name)
        assert one.local_bytes > 10_000_000
    assert found["toy"].default_max_new_tokens == load("toy").default_max_new_tokens


def test_published_names_have_the_sizes_of_their_shapes(tmp_path):
    shapes = {"LLaDA": LLADA_8B.shape, "Dream": DREAM_7B.shape}
    for one in PUBLISHED:
        shape = shapes[one.family]
        assert one.parameters == pytest.approx(shape.num_parameters, rel=0.01)
        assert one.max_seq_len == shape.max_seq_len
        assert one.chat == ("Base" not in one.name)
    assert all(listed(tmp_path)[one.name].local == "no" for one in PUBLISHED)
    assert listed(tmp_path)[NAME].download_bytes == pytest.approx(16e9, rel=0.01)


def test_a_checkpoint_in_the_cache_says_what_its_files_say(cached):
    cache, _ = cached
    one = listed(cache)[NAME]
    assert (one.local, one.default_max_new_tokens, one.max_seq_len, one.chat) == ("complete", 256, 1024, True)
    assert one.local_bytes == sum(f.stat().st_size for f in (FOLDER / "tiny-llada-instruct").iterdir())
    assert (one.error, one.download_bytes) == (None, 0)
    assert listed(cache)["GSAI-ML/LLaDA-8B-Base"].local == "no"


def test_a_shard_that_is_missing_makes_it_a_part(cached):
    cache, snapshot = cached
    (snapshot / "model.safetensors").unlink()
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-1.safetensors").write_bytes(b"")
    assert listed(cache)[NAME].local == "partial"


def broken_config(snapshot):
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("{")


def dangling(snapshot):
    for file in snapshot.parent.parent.joinpath("blobs").iterdir():
        file.unlink()


def no_weights(snapshot):
    (snapshot / "model.safetensors").unlink()


def foreign(snapshot):
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text('{"model_type": "llama"}')


def no_template(snapshot):
    (snapshot / "tokenizer_config.json").unlink()
    (snapshot / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')


def begun(snapshot):
    shutil.rmtree(snapshot)


def no_reference(snapshot):
    (snapshot.parent.parent / "refs" / "main").unlink()


def files_for_folders(snapshot):
    shutil.rmtree(snapshot.parent)
    snapshot.parent.write_text("a file")


@pytest.mark.parametrize(
    "broken",
    [
        broken_config, dangling, no_weights, foreign, no_template, begun, no_reference,
        files_for_folders,
    ],
)  # fmt: skip
def test_a_broken_cache_is_told_and_nothing_else_suffers(cached, broken):
    cache, snapshot = cached
    broken(snapshot)
    found = listed(cache)
    assert found[NAME].local == "partial"
    assert len(found) == len(BUILT_IN) + len(PUBLISHED)
    assert found["tiny-llada-base"].local == "complete"


def test_a_cache_that_is_no_folder_holds_nothing(tmp_path):
    for cache in (tmp_path / "nowhere", tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        assert all(one.local == "no" for one in listed(cache).values() if one.source == "hub")
