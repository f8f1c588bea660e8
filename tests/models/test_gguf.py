"""GGUF files of small checkpoints against their folders, and against llama.cpp's recorded logits."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies
from safetensors.torch import load_file, save_file

import lastword
from lastword.errors import CheckpointError, ExtraError, PromptError, SettingError
from lastword.models.gguf import WEIGHT_TYPES, GGUFFile
from lastword.models.weights import fingerprint, model_key
from tests.golden.cases import recording
from tests.models.gguf_files import EMBEDDED, K_TYPES, MODELS, Kind, Type, content_of, folder_like_published, gguf

TEXTS = [
    "Problem: Solve for n: 4n + 3 = 35.",
    "Hello, wörld's  12\n\n x",
    "I'LL don't we'Re 3.14159 a\n\n\nb \t c",
    "naïve 漢字 e\N{COMBINING ACUTE ACCENT} 🙂 x_y?!\r\n",
    "  leading and trailing  ",
    "<|eot_id|><|im_end|> is text",
    "",
]
# How far a weight may be from the stored one: shares of the largest of its block, for each type's number of steps.
STEPS = {"F16": 2**11, "Q8_0": 200, "Q6_K": 40, "Q5_K": 20, "Q4_K": 10, "Q4_1": 10, "Q4_0": 7}
# How far logits may be from those of the folder, as a share of their norm; four bits were seen to cost 0.22.
LOGITS = {"F32": 0, "BF16": 0, "F16": 1e-5, "Q8_0": 0.03, "Q6_K": 0.08, "Q5_K": 0.2}


def load(path, **settings):
    return lastword.load(path, **{"device": "cpu", "dtype": "float32", **settings})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoint folders with tokenizer files like the published ones, by name."""
    root = tmp_path_factory.mktemp("published")
    return {name: folder_like_published(name, root / name) for name in MODELS}


@pytest.fixture(scope="module")
def originals(folders):
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def plain_files(folders):
    """The folders as files of type F32, by name."""
    return {name: content_of(folder).write(folder / "model-f32.gguf") for name, folder in folders.items()}


def canvas(model):
    return torch.tensor([[*model.tokenizer.encode("Problem: 12 + 30 = ?"), *[model.ids.mask] * 12]])


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_every_type_loads_with_the_error_of_its_quantisation(name, kind, folders, originals, tmp_path):
    original = originals[name]
    model = load(content_of(folders[name], kind).write(tmp_path / "model.gguf"))
    assert model.ids == original.ids
    assert model.max_seq_len == original.max_seq_len
    for (key, stored), loaded in zip(original.state_dict().items(), model.state_dict().values()):
        assert stored.dtype == loaded.dtype == torch.float32
        if stored.dim() == 1 or kind in ("F32", "BF16"):  # the checkpoints are in bfloat16
            assert torch.equal(stored, loaded), key
            continue
        block = gguf.GGML_QUANT_SIZES[Kind[kind]][0]
        largest = stored.view(-1, block).abs().amax(-1, keepdim=True)
        assert ((stored - loaded).view(-1, block).abs() <= largest / STEPS[kind] + 1e-7).all(), key
    tokens = canvas(original)
    expected, logits = original(tokens), model(tokens)
    assert (logits - expected).norm() <= LOGITS.get(kind, 0.3) * expected.norm()


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_mixed_types_loads(name, folders, originals, tmp_path):
    """As llama.cpp's Q4_K_M: more bits for the values and the head."""
    content = content_of(folders[name], "Q4_K", attn_v="Q6_K", output="Q6_K", attn_q="Q5_K", token_embd="Q4_0")
    model = load(content.write(tmp_path / "mixed.gguf"), dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    expected, logits = originals[name](canvas(model)), model(canvas(model)).float()
    assert (logits - expected).norm() <= 0.3 * expected.norm()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_int8_weights_are_those_of_the_folder(name, tied, folders, tmp_path):
    """The types of a file are converted before the weights are quantised to int8."""
    folder = tmp_path / "folder"
    shutil.copytree(folders[name], folder)
    content = content_of(folder)
    if tied:
        del content.tensors["output.weight"]
        config = json.loads((folder / "config.json").read_text())
        config |= {"weight_tying": True, "tie_word_embeddings": True}
        (folder / "config.json").write_text(json.dumps(config))
        weights = load_file(folder / "model.safetensors")
        (head,) = weights.keys() & {"lm_head.weight", "model.transformer.ff_out.weight"}
        del weights[head]
        save_file(weights, folder / "model.safetensors")
    original, model = load(folder, quantization="int8"), load(content.write(tmp_path / "m.gguf"), quantization="int8")
    assert torch.equal(original(canvas(original)), model(canvas(model)))


@pytest.mark.parametrize("recipe", ["careful", "fast"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_equal_those_of_the_folder(name, recipe, plain_files, originals):
    model, original = load(plain_files[name]), originals[name]
    assert fingerprint(model) == fingerprint(original)
    assert model_key(model) == model_key(original)  # a calibration applies to both
    messages = [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]
    first, second = (
        lastword.generate(m, messages, recipe=recipe, length=lastword.Survival(48)) for m in (original, model)
    )
    assert first.text == second.text
    assert first.canvas == second.canvas


# Tokenizers


@pytest.mark.parametrize("name", MODELS)
def test_tokens_equal_those_of_the_folder(name, plain_files, originals):
    tokenizer, original = load(plain_files[name]).tokenizer, originals[name].tokenizer
    assert (tokenizer.bos, tokenizer.eos, tokenizer.size) == (original.bos, original.eos, original.size)
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text)
        assert tokenizer.encode_with_special_tokens(text) == original.encode_with_special_tokens(text)
        assert tokenizer.decode(tokenizer.encode(text)) == original.decode(original.encode(text))
        messages = [{"role": "user", "content": text}]
        assert tokenizer.chat(messages) == original.chat(messages)
    everything = range(tokenizer.size)
    assert tokenizer.decode(everything) == original.decode(everything)
    assert tokenizer.decode(everything, skip_special=False) == original.decode(everything, skip_special=False)

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategies.text(max_size=40) | strategies.text("'sSdlLtmvVeErR \n\r\t.,a1é\u0301", max_size=40))
    def equal(text):
        assert tokenizer.encode(text) == original.encode(text)

    equal()


def test_spare_rows_and_added_tokens_that_are_not_special(folders, tmp_path):
    content = content_of(folders["tiny-llada-instruct"])
    tokens, kinds = (content.values[f"tokenizer.ggml.{key}"][1] for key in ("tokens", "token_type"))
    tokens[950], kinds[950] = "<think>", 4
    tokens[951], kinds[951] = "[PAD951]", 5
    merges = content.values["tokenizer.ggml.merges"][1]
    merges[:] = [merge for merge in merges if {*tokens} >= {*merge.split(), merge.replace(" ", "")}]
    tokenizer = load(content.write(tmp_path / "model.gguf")).tokenizer
    assert 950 in tokenizer.encode("a<think>b")
    assert tokenizer.decode([950]) == "<think>"
    assert 951 not in tokenizer.encode("[PAD951]")
    assert tokenizer.decode([951]) == ""


def test_a_file_without_a_tokenizer_takes_token_ids(golden, tmp_path):
    model = load(content_of(golden / "llada-tiny").write(tmp_path / "model.gguf"))
    original = load(golden / "llada-tiny")
    assert model.tokenizer is None
    tokens = torch.tensor([[5, 42, 17, 100, 63, 376, 376]])
    assert torch.equal(model(tokens), original(tokens))
    assert (
        lastword.generate(model, [5, 42], length="fixed:16").tokens
        == lastword.generate(original, [5, 42], length="fixed:16").tokens
    )
    with pytest.raises(PromptError):
        lastword.generate(model, "text")


@pytest.mark.parametrize("kind", K_TYPES)
def test_k_types_are_encoded_as_documented(kind):
    weights = np.random.default_rng(0).normal(0.01, 0.02, (64, 512)).astype(np.float32)
    weights[0] = 0
    weights[1, :256] = 1
    blocks, values = K_TYPES[kind](weights.reshape(-1, 256))
    assert np.allclose(gguf.dequantize(blocks, Kind[kind]), values, rtol=1e-6, atol=1e-8)


# Hyperparameters


def test_a_file_without_a_head_has_a_tied_one(golden, tmp_path):
    content = content_of(golden / "dream-tiny")
    del content.tensors["output.weight"]
    network = load(content.write(tmp_path / "tied.gguf")).network
    assert network.head.weight is network.embedding.weight


def test_the_file_says_whether_logits_are_shifted(golden, tmp_path):
    content = content_of(golden / "dream-tiny")
    assert load(content.write(tmp_path / "model.gguf")).architecture.shifted_logits
    content.values["diffusion.shift_logits"] = Type.BOOL, False
    assert not load(content.write(tmp_path / "model.gguf")).architecture.shifted_logits


def test_optional_keys_have_the_defaults_of_llama_cpp(golden, tmp_path):
    content = content_of(golden / "llada-tiny")
    for key in ("rope.freq_base", "rope.dimension_count", "attention.head_count_kv", "attention.causal", "vocab_size"):
        del content.values[f"llada.{key}"]
    del content.values["general.alignment"], content.values["tokenizer.ggml.padding_token_id"]
    model = load(content.write(tmp_path / "model.gguf"))
    assert model.network.config.rope_theta == 10_000
    assert model.network.config.num_kv_heads == 4
    assert model.ids.pad == model.ids.end == 353


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16")])
def test_the_stored_dtype(kind, dtype, golden, tmp_path):
    file = GGUFFile(content_of(golden / "llada-tiny", kind).write(tmp_path / "model.gguf"))
    assert file.dtype == getattr(torch, dtype)


# Weights


def test_tensors_come_layer_by_layer(plain_files, originals):
    file, original = (m["tiny-llada-instruct"] for m in (plain_files, originals))
    parameters = dict(original.network.named_parameters())
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    tensors = list(GGUFFile(file).tensors(shapes, torch.device("cpu"), torch.float32))
    assert sorted(name for name, _ in tensors) == sorted(parameters)
    layers = [int(name.split(".")[1]) for name, _ in tensors if name.startswith("blocks.")]
    assert layers == sorted(layers)
    assert all(torch.equal(tensor, parameters[name]) for name, tensor in tensors)


MEASURE = """
import resource, sys
import torch, lastword

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
lastword.load("tiny-llada-base", device="cpu")
before = peak()
model = lastword.load(sys.argv[1], device="cpu", dtype="bfloat16")
print(peak() - before, sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_loading_needs_one_layer_more_than_the_model(tmp_path):
    width, inner, layers, vocab = 1024, 4096, 5, 8192
    writer = gguf.GGUFWriter(tmp_path / "large.gguf", "llada")
    for key, value in {"block_count": layers, "context_length": 512, "embedding_length": width}.items():
        writer.add_uint32(f"llada.{key}", value)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_mask_token_id(1)
    writer.add_eos_token_id(2)
    rows = {"attn_q": width, "attn_k": width, "attn_v": width, "attn_output": width}
    shapes = {**{name: (count, width) for name, count in rows.items()}, "ffn_gate": (inner, width)}
    shapes |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
    named = {"token_embd.weight": (vocab, width), "output.weight": (vocab, width)}
    named |= {f"blk.{i}.{name}.weight": shape for i in range(layers) for name, shape in shapes.items()}
    for name, (count, columns) in named.items():
        blocks = np.full((count, columns // 256, 144), 1, np.uint8)  # scales of about 1.5e-5
        writer.add_tensor(name, blocks.reshape(count, -1), raw_dtype=Kind.Q4_K)
    for name in ("output_norm", *(f"blk.{i}.{norm}" for i in range(layers) for norm in ("attn_norm", "ffn_norm"))):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "large.gguf")]
    used, model = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert model > 200e6
    assert used < model + 2 * sum(math.prod(shape) for shape in shapes.values())


# llama.cpp


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_llama_cpp(name, kind, tmp_path):
    recorded = recording("llama_cpp_logits")
    model = load(content_of(EMBEDDED / name, kind).write(tmp_path / "model.gguf"))
    if kind == "F32" and fingerprint(model) != bytes(recorded[f"{name}.fingerprint"].tolist()).decode():
        pytest.fail("the embedded models were trained again: record llama.cpp's logits again")
    tokens, expected = recorded[f"{name}.tokens"], recorded[f"{name}.{kind}"].float()
    with torch.no_grad():  # Dream's logits as they leave the network, not shifted
        network = model.network
        logits = network.head(network.norm(network.hidden(tokens[None])))[0]
    if kind == "F32":
        assert torch.allclose(logits, expected, rtol=0, atol=1e-3)
    else:  # llama.cpp rounds the activations too, to 8 bits for the quantised types
        logits = logits[-6::2]
        assert (logits - expected).norm() < 0.03 * expected.norm()


# Names


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for name in ("no-such-file.gguf", "org/no-such-file.gguf", "~/no/such.gguf", tmp_path / "none.gguf"):
        with pytest.raises(CheckpointError, match="there is no file"):
            load(name)


def test_a_folder_may_have_the_ending(golden, tmp_path):
    (tmp_path / "folder.gguf").symlink_to(golden / "llada-tiny")
    assert load(tmp_path / "folder.gguf").max_seq_len == 96


def test_a_file_has_no_revision(plain_files):
    with pytest.raises(SettingError, match="leave revision out"):
        load(plain_files["tiny-llada-instruct"], revision="main")


def test_a_link_to_a_file_is_followed(plain_files, tmp_path):
    (tmp_path / "link.gguf").symlink_to(plain_files["tiny-llada-instruct"])
    assert load(str(tmp_path / "link.gguf")).tokenizer


def test_without_the_package_the_extra_is_named(plain_files, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ExtraError, match=r"lastword\[gguf\]"):
        load(plain_files["tiny-llada-instruct"])


def test_turn_ends_and_calibration_work_as_for_folders(plain_files):
    file = plain_files["tiny-llada-instruct"]
    assert load(file, turn_ends=[5]).ids.turn_ends == (5,)
    assert load(file, calibration=None).calibration is None
