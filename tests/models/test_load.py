from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lastword
import lastword.models.load as loading
from lastword.errors import CheckpointError, SettingError

TOKENS = torch.tensor([[5, 42, 17, 100, 63, 376, 376]])
READ = torch.arange(7)[None]


def load(folder, **settings):
    return lastword.load(folder, device="cpu", **settings)


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


# Names and folders


@pytest.mark.parametrize("name", ["no-such-folder", "/no/such/folder", "./no/such", "~/no-such-one"])
def test_a_folder_that_is_not_there_is_refused(name):
    with pytest.raises(CheckpointError, match="there is no folder"):
        load(name)


def test_a_misspelt_toy_is_suggested():
    with pytest.raises(CheckpointError, match="did you mean 'toy'"):
        load("tooy")


# Special ids


def test_ids_missing_everywhere_are_refused(checkpoint):
    folder = checkpoint(eos_token_id=...)
    (folder / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match="names no end token"):
        load(folder)


def test_ids_come_from_config_and_where_it_is_silent_from_the_generation_config(checkpoint):
    folder = checkpoint(eos_token_id=..., pad_token_id=None)
    (folder / "generation_config.json").write_text('{"eos_token_id": 350, "mask_token_id": 351}')
    ids = load(folder).ids
    assert (ids.end, ids.pad, ids.mask) == (350, 350, 376)


def test_a_checkpoint_may_say_that_it_was_trained_on_one_question(checkpoint):
    folder = checkpoint()
    assert not load(folder).single_turn
    (folder / "generation_config.json").write_text('{"single_turn": true}')
    assert load(folder).single_turn
    (folder / "generation_config.json").write_text('{"single_turn": "always"}')
    with pytest.raises(CheckpointError, match="single_turn='always'"):
        load(folder)


def test_every_end_id_of_the_checkpoint_ends_an_answer(checkpoint):
    assert load(checkpoint(eos_token_id=[353, 350, 351])).ids.ends == (353, 350, 351)


def test_turn_end_can_be_set_and_taken_away(checkpoint, golden):
    assert load(golden / "llada-tiny").ids.turn_ends == ()
    assert load(golden / "llada-tiny", turn_ends=(380,)).ids.ends == (353, 380)
    assert load(checkpoint(eos_token_id=[353, 350]), turn_ends=()).ids.ends == (353,)
    with pytest.raises(SettingError, match="turn_ends=999"):
        load(golden / "llada-tiny", turn_ends=(999,))


# Weights


def test_a_folder_without_weights_is_refused(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        load(folder)


def test_stored_rotary_frequencies_are_ignored(checkpoint):
    folder = checkpoint("dream-tiny")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert load(folder)


@pytest.mark.parametrize("size", [0, 5])
def test_a_truncated_file_is_refused(checkpoint, size):
    path = checkpoint() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load(path.parent)


def test_an_index_that_points_to_the_wrong_shard_is_refused(checkpoint):
    folder = checkpoint("llada-tiny-sharded")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name, file = next(iter(index["weight_map"].items()))
    index["weight_map"][name] = next(f for f in index["weight_map"].values() if f != file)
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize(
    ("name", "switch", "head", "embedding"),
    [
        ("llada-tiny", "weight_tying", "model.transformer.ff_out.weight", "model.transformer.wte.weight"),
        ("dream-tiny", "tie_word_embeddings", "lm_head.weight", "model.embed_tokens.weight"),
    ],
)
@pytest.mark.parametrize("stored", [True, False])
def test_a_tied_head_is_the_embedding_stored_or_not(checkpoint, name, switch, head, embedding, stored):
    folder = checkpoint(name, **{switch: True})

    def tie(tensors):
        del tensors[head]
        if stored:
            tensors[head] = tensors[embedding].clone()

    change_tensors(folder, tie)
    network = load(folder).network
    assert network.head.weight is network.embedding.weight
    assert torch.equal(network.head.weight, load_file(folder / "model.safetensors")[embedding])


# Device and dtype


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_weights_come_in_the_wanted_dtype(golden, dtype):
    model = load(golden / "dream-tiny", dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model(TOKENS, READ).dtype == torch.bfloat16
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("stored", "large", "instructions", "quantization", "dtype"),
    [
        (torch.bfloat16, True, {"avx512_bf16": True}, None, torch.bfloat16),
        (torch.bfloat16, True, {"amx_bf16": True, "avx512_bf16": False}, None, torch.bfloat16),
        (torch.bfloat16, True, {"avx512_bf16": False}, None, torch.float32),
        (torch.bfloat16, True, {}, None, torch.float32),
        (torch.bfloat16, True, {"avx512_bf16": True}, "int8", torch.float32),
        (torch.bfloat16, False, {"avx512_bf16": True}, None, torch.float32),
        (torch.float16, True, {"avx512_bf16": True}, None, torch.float32),
        (torch.float32, True, {"avx512_bf16": True}, None, torch.float32),
    ],
)
def test_auto_on_a_cpu(checkpoint, monkeypatch, stored, large, instructions, quantization, dtype):
    folder = checkpoint()
    change_tensors(folder, lambda t: t.update({k: v.to(stored) for k, v in t.items()}))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions, raising=False)
    if large:
        monkeypatch.setattr(loading, "LARGE", 1)
    model = load(folder, quantization=quantization)
    assert model.network.embedding.weight.dtype == dtype
    chosen = load(folder, dtype="float16", quantization=quantization)
    assert chosen.network.embedding.weight.dtype == torch.float16


@pytest.mark.parametrize("name", ["tiny-llada-base", "tiny-dream-instruct"])
def test_embedded_models_compute_in_float32(name):
    assert load(name).network.embedding.weight.dtype == torch.float32


def test_every_parameter_left_the_meta_device(llada, dream):
    for model in (llada, dream):
        assert {p.device.type for p in model.parameters()} == {"cpu"}
        assert model.device.type == "cpu"
        assert not model.training


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_refused(golden):
    with pytest.raises(SettingError, match="cuda"):
        lastword.load(golden / "llada-tiny", device="cuda")


# Hub names


@pytest.fixture
def offline(tmp_path, golden, plain_python):
    """What loading gives without a network, with org/tiny alone in the hub's cache."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir()
    for number, file in enumerate((golden / "llada-tiny").iterdir()):
        shutil.copyfile(file, repository / "blobs" / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040x}")

    return plain_python(HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path / "hub"))


@pytest.mark.slow
def test_a_hub_name_loads_from_the_cache_offline_and_no_other_does(offline):
    same = "torch.equal(m.network.head.weight, lastword.load(golden / 'llada-tiny').network.head.weight)"
    expected = {
        f"(lambda m: 1 / int({same}))(lastword.load('org/tiny', device='cpu'))": "no error",
        "lastword.load(Path('org/tiny'))": "no error",
        "lastword.load('nobody/no-such-model')": "CheckpointError",
        "lastword.load('no body/no--such..model')": "CheckpointError",
        "lastword.load('org/tiny', revision='other-branch')": "CheckpointError",
    }
    assert offline(expected) == expected


def test_a_hub_name_that_cannot_be_fetched_is_refused_with_advice(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*_, **__):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"not a local folder.*could not be fetched.*give its path"):
        load("nobody/no-such-model")


def test_a_folder_without_tokenizer_has_none(llada):
    assert llada.tokenizer is None
    assert isinstance(llada.max_seq_len, int)


def test_paths_may_be_strings_or_paths(golden):
    for folder in (str(golden / "dream-tiny"), Path(golden / "dream-tiny")):
        assert load(folder).architecture.name == "Dream"


# The canvas it is made for


def generation(folder, **fields):
    path = folder / "generation_config.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**data, **fields}))


def test_a_checkpoint_says_what_canvas_it_is_made_for(checkpoint):
    folder = checkpoint()
    generation(folder, max_new_tokens=None)
    assert load(folder).default_max_new_tokens == 1024
    generation(folder, max_new_tokens=40)
    assert load(folder).default_max_new_tokens == 40
    assert lastword.predict_length(load(folder), [5, 6]).slots == 40
