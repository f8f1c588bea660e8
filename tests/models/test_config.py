"""What is read of a checkpoint's JSON files; what is refused has a table in tests/bad_inputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lastword
from lastword.embedded import EMBEDDED, FOLDER
from lastword.errors import CheckpointError
from lastword.models.architectures import DreamConfig, LLaDAConfig
from lastword.models.config import GenerationConfig, is_plain_file
from lastword.models.layers import TransformerConfig

# As published with LLaDA-8B-Instruct and Dream-v0-Instruct-7B, fields that say nothing of the model included.
LLADA_8B = {
    "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig"}, "bias_for_layer_norm": False,
    "block_group_size": 1, "block_type": "llama", "d_model": 4096, "embedding_dropout": 0.0,
    "embedding_size": 126464, "eos_token_id": 126081, "flash_attention": False, "include_bias": False,
    "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta", "init_fn": "mitchell",
    "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
    "mask_token_id": 126336, "max_sequence_length": 4096, "mlp_hidden_size": 12288, "mlp_ratio": 4,
    "model_type": "llada", "multi_query_attention": None, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32,
    "pad_token_id": 126081, "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05,
    "rope": True, "rope_full_precision": True, "rope_theta": 500000.0, "scale_logits": False,
    "transformers_version": "4.46.3", "use_cache": False, "vocab_size": 126464, "weight_tying": False,
}  # fmt: skip
DREAM_7B = {
    "architectures": ["DreamModel"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig"}, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "mask_token_id": 151666, "max_position_embeddings": 131072, "max_window_layers": 28,
    "model_type": "Dream", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "pad_token_id": 151643, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.46.2", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip


def test_the_published_configs_are_read():
    llada = LLaDAConfig.parse(LLADA_8B, Path("config.json"))
    assert llada.transformer() == TransformerConfig(
        hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=32, intermediate_size=12288,
        vocab_size=126464,
        rope_theta=500000.0, norm_eps=1e-5, max_seq_len=4096, qkv_bias=False, tied_head=False,
        rotate_in_float32=True,
    )  # fmt: skip
    assert (llada.mask_token_id, llada.eos_token_id, llada.pad_token_id) == (126336, [126081], 126081)
    dream = DreamConfig.parse(DREAM_7B, Path("config.json"))
    assert dream.transformer() == TransformerConfig(
        hidden_size=3584, num_layers=28, num_heads=28, num_kv_heads=4, intermediate_size=18944,
        vocab_size=152064,
        rope_theta=1000000.0, norm_eps=1e-6, max_seq_len=131072, qkv_bias=True, tied_head=False,
        rotate_in_float32=False,
    )  # fmt: skip
    assert (dream.mask_token_id, dream.eos_token_id) == (151666, [151643])


def test_null_is_absent_and_for_a_switch_false():
    nulls = dict.fromkeys(["n_kv_heads", "mlp_hidden_size", "embedding_size", "rope_theta"])
    shape = LLaDAConfig.parse({**LLADA_8B, **nulls, "rope_full_precision": None}, Path("c")).transformer()
    assert (shape.num_kv_heads, shape.intermediate_size, shape.vocab_size) == (32, 4 * 4096, 126464)
    assert shape.rope_theta == 10_000.0
    assert not shape.rotate_in_float32
    published = GenerationConfig.parse({"mask_token_id": None, "steps": 512, "top_k": None}, Path("g"))
    assert published == GenerationConfig()


def test_a_mark_before_the_text_is_nothing(checkpoint):
    folder = checkpoint()
    path = folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert lastword.load(folder, device="cpu").max_seq_len == 96


# Links


@pytest.fixture
def hub(golden, tmp_path):
    """A repository as the hub's cache has it: every file a link to a blob."""
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "0123abcd"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate((golden / "llada-tiny-sharded").iterdir()):
        shutil.copyfile(file, blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040x}")
    return snapshot


def test_links_of_the_hub_are_followed(hub):
    assert lastword.load(hub, device="cpu")


def test_a_link_of_the_hub_that_leads_elsewhere_is_not(hub, golden):
    (hub / "config.json").unlink()
    (hub / "config.json").symlink_to(golden / "llada-tiny" / "config.json")
    with pytest.raises(CheckpointError, match="copy the file there"):
        lastword.load(hub, device="cpu")


def test_blobs_count_only_beside_snapshots(hub):
    hub.rename(hub.parent.parent / "plain")
    with pytest.raises(CheckpointError, match="outside of its folder"):
        lastword.load(hub.parent.parent / "plain", device="cpu")


def test_a_link_to_a_folder_and_links_inside_it_are_followed(checkpoint, tmp_path):
    folder = checkpoint()
    (folder / "config.json").rename(folder / "config-v2.json")
    (folder / "config.json").symlink_to("config-v2.json")
    (tmp_path / "latest").symlink_to(folder)
    assert lastword.load(tmp_path / "latest", device="cpu")


def test_embedded_models_may_be_installed_as_links(tmp_path, monkeypatch):
    import lastword.models.config as inside

    name = EMBEDDED[0]
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").symlink_to(FOLDER / name / "config.json")
    with pytest.raises(CheckpointError):
        is_plain_file(tmp_path / name / "config.json")
    monkeypatch.setattr(inside, "EMBEDDED_FOLDER", tmp_path)
    is_plain_file(tmp_path / name / "config.json")


def test_the_toy_takes_what_it_does_anyway():
    for settings in ({"device": "cpu"}, {"dtype": "float64"}, {"device": "auto", "dtype": "auto"}):
        assert isinstance(lastword.load("toy", **settings), lastword.Toy)


def test_the_index_names_few_files_and_many_tensors(golden):
    from lastword.models.weights import tensor_files

    files = tensor_files(golden / "llada-tiny-sharded")
    stated = json.loads((golden / "llada-tiny-sharded/model.safetensors.index.json").read_text())
    assert {name: path.name for name, path in files.items()} == stated["weight_map"]
