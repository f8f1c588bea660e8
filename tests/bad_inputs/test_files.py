"""Files of others that are wrong, and what `load`, `Recipe.from_json` and `Calibration.read` say of each.

A row: a name, what is done in an empty folder, the error it must end in, a phrase its message must hold.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lastword
from lastword.calibration import Calibration, Ratios
from lastword.canvas.tokens import TokenIds
from lastword.errors import CheckpointError, PromptError, RecipeError, SettingError, WrongTypeError
from lastword.models.tokenizer import Tokenizer
from lastword.recipe.recipe import Recipe
from lastword.recipe.text import parse_part
from lastword.survival.distribution import Quantile
from lastword.survival.interpretation import Hazard

GOLDEN = Path(__file__).parent.parent / "golden"
EMBEDDED = Path(lastword.__file__).parent / "embedded"
NAN, INF = float("nan"), float("inf")
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
GENERATION, TOKENIZER, TEMPLATE = "generation_config.json", "tokenizer.json", "chat_template.jinja"
SHARD = "model-00002-of-00003.safetensors"
EMBEDDING, HEAD = "model.transformer.wte.weight", "model.transformer.ff_out.weight"
NORM = "model.transformer.ln_f.weight"


def changed(path, changes):
    """A JSON file with fields changed; `...` takes one away."""
    data = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not ...}))


def loaded(base="llada-tiny", change=lambda folder: None, **settings):
    """Loads a copy of a golden checkpoint after a change to it."""

    def act(tmp_path):
        folder = tmp_path / "model"
        shutil.copytree(GOLDEN / base, folder)
        change(folder)
        lastword.load(folder, **{"device": "cpu", **settings})

    return act


def llada(**changes):
    return loaded("llada-tiny", lambda folder: changed(folder / CONFIG, changes))


def dream(**changes):
    return loaded("dream-tiny", lambda folder: changed(folder / CONFIG, changes))


def generation(**changes):
    return loaded("llada-tiny", lambda folder: changed(folder / GENERATION, changes))


def holding(name, data, base="llada-tiny"):
    """The file holds other bytes."""
    data = data.encode() if isinstance(data, str) else data
    return loaded(base, lambda folder: (folder / name).write_bytes(data))


def index(**changes):
    return loaded("llada-tiny-sharded", lambda folder: changed(folder / INDEX, changes))


def first_shard(name):
    """The index says that the first tensor is in another file."""

    def change(folder):
        data = json.loads((folder / INDEX).read_text())
        data["weight_map"][next(iter(data["weight_map"]))] = name
        (folder / INDEX).write_text(json.dumps(data))

    return loaded("llada-tiny-sharded", change)


def tensors(change, dtype="auto", **config):
    """The stored tensors are others."""

    def both(folder):
        stored = load_file(folder / WEIGHTS)
        change(stored)
        save_file(stored, folder / WEIGHTS)
        changed(folder / CONFIG, config)

    return loaded("llada-tiny", both, dtype=dtype)


def stored_as(dtype, name=NORM):
    return tensors(lambda stored: stored.update({name: stored[name].to(dtype)}))


def linked(name, base="llada-tiny", to="elsewhere"):
    """The file is a link to one outside of the folder."""

    def change(folder):
        shutil.move(folder / name, folder.parent / to)
        (folder / name).symlink_to(folder.parent / to)

    return loaded(base, change)


def replaced(name, make, base="llada-tiny"):
    """Something else stands in the place of a file."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return loaded(base, change)


def tokenizer(name=None, data=b"", **settings):
    """A tokenizer, one of its files holding other bytes, or its settings changed."""

    def act(tmp_path):
        for file in (TOKENIZER, "tokenizer_config.json"):
            shutil.copyfile(EMBEDDED / "tiny-llada-instruct" / file, tmp_path / file)
        changed(tmp_path / "tokenizer_config.json", settings)
        if name:
            (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return Tokenizer.from_folder(tmp_path)

    return act


def chat(template):
    """A conversation laid out by a template."""
    made = tokenizer(chat_template=template)
    return lambda tmp_path: made(tmp_path).chat([{"role": "user", "content": "hello"}])


def asked(*names, **settings):
    return lambda _: lastword.load(*names, **settings)


def tiny(**settings):
    return asked(GOLDEN / "llada-tiny", **{"device": "cpu", **settings})


def recipe(text):
    text = text if isinstance(text, str) else json.dumps(text)
    return lambda _: Recipe.from_json(text)


def words(axis, text):
    return lambda _: parse_part(axis, text)


def calibration(**changes):
    """A lengths.json with fields changed."""

    def act(tmp_path):
        good = Calibration("0" * 16, 64, Hazard(), Quantile(0.5), {"all": Ratios((1.0, 2.0), 1)})
        (tmp_path / "lengths.json").write_text(good.to_json())
        Calibration.from_file(tmp_path / "lengths.json")
        changed(tmp_path / "lengths.json", changes)
        Calibration.from_file(tmp_path / "lengths.json")

    return act


def calibration_of(data):
    def act(tmp_path):
        (tmp_path / "lengths.json").write_bytes(data)
        Calibration.from_file(tmp_path / "lengths.json")

    return act


def nested(depth):
    return "[" * depth + "]" * depth


CONFIGS = [
    ("a million layers", llada(n_layers=10**6), "n_layers=1000000"),
    ("1,001 layers", llada(n_layers=1_001), "less than or equal to 1000"),
    ("layers beyond 64 bits", llada(n_layers=10**30), "n_layers=1000"),
    ("no layers", llada(n_layers=0), "greater than or equal to 1"),
    ("fewer than none", llada(n_layers=-3), "n_layers=-3"),
    ("layers as text", llada(n_layers="3"), "n_layers='3'"),
    ("layers as a truth value", llada(n_layers=True), "n_layers=True"),
    ("layers as a float", llada(n_layers=3.0), "n_layers=3.0"),
    ("layers in a list", llada(n_layers=[3]), "n_layers=[3]"),
    ("layers null", llada(n_layers=None), "lacks the field n_layers"),
    ("more layers than weights", llada(n_layers=1_000), "tensors are missing"),
    ("fewer layers than weights", llada(n_layers=2), "are not part of the architecture"),
    ("a width of nothing", llada(d_model=0), "d_model=0"),
    ("a width beyond memory", llada(d_model=2**40), "d_model=1099511627776"),
    ("a width that heads do not split", llada(d_model=65), "even parts"),
    ("a width with odd heads", llada(d_model=20), "even parts"),
    ("a million heads", llada(n_heads=10**6), "n_heads=1000000"),
    ("heads that do not split the width", llada(n_heads=7), "even parts"),
    ("key-value heads that do not split heads", llada(n_kv_heads=3), "key-value heads"),
    ("more key-value heads than heads", llada(n_kv_heads=8), "key-value heads"),
    ("key-value heads zero", llada(n_kv_heads=0), "n_kv_heads=0"),
    ("an mlp of nothing", llada(mlp_hidden_size=0), "mlp_hidden_size=0"),
    ("an mlp of another size", llada(mlp_hidden_size=128), "different models"),
    ("a ratio of thousands", llada(mlp_hidden_size=None, mlp_ratio=5_000), "mlp_ratio=5000"),
    ("a vocabulary of nothing", llada(embedding_size=None, vocab_size=0), "vocab_size=0"),
    ("a vocabulary of billions", llada(embedding_size=2**40), "embedding_size=1099511627776"),
    ("no vocabulary", llada(vocab_size=...), "lacks the field vocab_size"),
    ("a vocabulary of another model", llada(embedding_size=512), "different models"),
    ("no positions", llada(max_sequence_length=0), "max_sequence_length=0"),
    ("positions without end", llada(max_sequence_length=2**62), "max_sequence_length=4611686"),
    ("positions as text", llada(max_sequence_length="many"), "max_sequence_length='many'"),
    ("rotation NaN", llada(rope_theta=NAN), "config.json cannot be read as JSON"),
    ("rotation infinite", llada(rope_theta=INF), "config.json cannot be read as JSON"),
    ("rotation out of reach", llada(rope_theta=10**400), "rope_theta=1000"),
    ("rotation zero", llada(rope_theta=0), "rope_theta=0"),
    ("rotation negative", llada(rope_theta=-10_000.0), "rope_theta=-10000.0"),
    ("rotation beyond float32", llada(rope_theta=1e39), "rope_theta=1e+39"),
    ("rotation true", llada(rope_theta=True), "rope_theta=True"),
    ("norm zero", llada(rms_norm_eps=0), "rms_norm_eps=0"),
    ("norm one", llada(rms_norm_eps=1), "rms_norm_eps=1"),
    ("norm negative", llada(rms_norm_eps=-1e-5), "rms_norm_eps=-1e-05"),
    ("tying as text", llada(weight_tying="false"), "weight_tying='false'"),
    ("tying as a number", llada(weight_tying=1), "weight_tying=1"),
    ("precision as text", llada(rope_full_precision="yes"), "rope_full_precision='yes'"),
    ("no rotation", llada(rope=False), "our LLaDA is built for True"),
    ("rotation switched to null", llada(rope=None), "rope=False"),
    ("alibi", llada(alibi=True), "lastword.Adapter"),
    ("alibi as text", llada(alibi="no"), "alibi='no'"),
    ("another block", llada(block_type="sequential"), "our LLaDA is built for 'llama'"),
    ("block type a list", llada(block_type=["llama"]), "block_type=['llama']"),
    ("another activation", llada(activation_type="swiglu"), "activation_type='swiglu'"),
    ("another norm", llada(layer_norm_type="default"), "layer_norm_type='default'"),
    ("norms without weights", llada(layer_norm_with_affine=False), "layer_norm_with_affine"),
    ("norms of queries", llada(attention_layer_norm=True), "attention_layer_norm=True"),
    ("biases", llada(include_bias=True), "include_bias=True"),
    ("biases of queries", llada(include_qkv_bias=True), "include_qkv_bias=True"),
    ("scaled embeddings", llada(input_emb_norm=True), "input_emb_norm=True"),
    ("scaled logits", llada(scale_logits=True), "scale_logits=True"),
    ("one key for all", llada(multi_query_attention=True), "multi_query_attention=True"),
    ("grouped blocks", llada(block_group_size=4), "block_group_size=4"),
    ("no type", llada(model_type=...), "model_type=None"),
    ("a type that is no text", llada(model_type=["llada"]), "model_type=['llada']"),
    ("a type of 5,000 letters", llada(model_type="l" * 5_000), "supported are llada, dream"),
    ("another family", llada(model_type="qwen2"), "lastword.Adapter"),
    ("a family that reads otherwise", llada(model_type="Dream"), "lacks the field hidden_size"),
    ("the mask true", llada(mask_token_id=True), "mask_token_id=True"),
    ("the mask a float", llada(mask_token_id=376.0), "mask_token_id=376.0"),
    ("the mask as text", llada(mask_token_id="376"), "mask_token_id='376'"),
    ("the mask negative", llada(mask_token_id=-1), "mask_token_id=-1"),
    ("the mask beyond 64 bits", llada(mask_token_id=2**70), "mask_token_id=11805"),
    ("the mask outside", llada(mask_token_id=384), "at most 383"),
    ("the mask an end", llada(mask_token_id=353), "also an end or pad id"),
    ("no mask", llada(mask_token_id=...), "names no mask token"),
    ("the end true", llada(eos_token_id=True), "eos_token_id.0=True"),
    ("the end as text", llada(eos_token_id="<end>"), "eos_token_id.0='<end>'"),
    ("ends with junk", llada(eos_token_id=[353, "x"]), "eos_token_id.1='x'"),
    ("ends with null", llada(eos_token_id=[353, None]), "eos_token_id.1=None"),
    ("ends in lists", llada(eos_token_id=[[353]]), "eos_token_id.0=[353]"),
    ("ends by name", llada(eos_token_id={"end": 353}), "eos_token_id.0={'end': 353}"),
    ("thousands of ends", llada(eos_token_id=[353] * 5_000), "at most 1000 items"),
    ("an end outside", llada(eos_token_id=[353, 999]), "turn_ends=999"),
    ("the pad true", llada(pad_token_id=True), "pad_token_id=True"),
    ("the pad outside", llada(pad_token_id=9_999), "pad=9999"),
    ("Dream: a width as text", dream(hidden_size="64"), "hidden_size='64'"),
    ("Dream: a million layers", dream(num_hidden_layers=10**6), "num_hidden_layers=1000000"),
    ("Dream: more layers than weights", dream(num_hidden_layers=900), "tensors are missing"),
    ("Dream: no key-value heads", dream(num_key_value_heads=None), "lacks the field num_key_value"),
    ("Dream: odd key-value heads", dream(num_key_value_heads=3), "key-value heads"),
    ("Dream: no rotation", dream(rope_theta=...), "lacks the field rope_theta"),
    ("Dream: scaled rotation", dream(rope_scaling={"type": "yarn"}), "our Dream is built for"),
    ("Dream: sliding window", dream(use_sliding_window=True), "use_sliding_window=True"),
    ("Dream: rotation in three", dream(use_mrope=True), "use_mrope=True"),
    ("Dream: another activation", dream(hidden_act="gelu"), "our Dream is built for 'silu'"),
    ("Dream: tying as text", dream(tie_word_embeddings="no"), "tie_word_embeddings='no'"),
    ("Dream: norm infinite", dream(rms_norm_eps=INF), "cannot be read as JSON"),
    ("Dream: positions negative", dream(max_position_embeddings=-1), "max_position_embeddings=-1"),
    ("Dream: a family that reads otherwise", dream(model_type="llada"), "lacks the field d_model"),
    ("slots zero", generation(max_new_tokens=0), "max_new_tokens=0"),
    ("slots true", generation(max_new_tokens=True), "max_new_tokens=True"),
    ("slots without end", generation(max_new_tokens=10**12), "max_new_tokens=1000000000000"),
    ("slots as a float", generation(max_new_tokens=64.5), "max_new_tokens=64.5"),
    ("slots in a list", generation(max_new_tokens=[64]), "generation_config.json has"),
    ("a generation's mask true", generation(mask_token_id=True), "generation_config.json has mask"),
    ("a generation's ends", generation(eos_token_id=["x"]), "eos_token_id.0='x'"),
]

BYTES = [
    ("nothing", holding(CONFIG, b""), "config.json cannot be read as JSON"),
    ("half a config", holding(CONFIG, '{"model_type": "llada", '), "EOF"),
    ("no JSON", holding(CONFIG, "version https://git-lfs"), "download it again"),
    ("a list", holding(CONFIG, "[1, 2]"), "it must be an object"),
    ("a number", holding(CONFIG, "5"), "it must be an object"),
    ("null", holding(CONFIG, "null"), "it must be an object"),
    ("nested without end", holding(CONFIG, nested(10**5)), "recursion limit"),
    ("nested in a field", holding(CONFIG, f'{{"a": {nested(10_000)}}}'), "recursion limit"),
    ("bytes of another encoding", holding(CONFIG, b'{"a": "\xff\xfe"}'), "config.json"),
    ("UTF-16", holding(CONFIG, '{"model_type": "llada"}'.encode("utf-16")), "config.json"),
    ("a mark and nothing", holding(CONFIG, b"\xef\xbb\xbf"), "EOF"),
    ("a field twice", holding(CONFIG, '{"d_model": 64, "d_model": 32}'), "'d_model' twice"),
    ("a number of 10,000 digits", holding(CONFIG, f'{{"d_model": {"9" * 10_000}}}'), "out of range"),
    ("a float out of reach", holding(CONFIG, '{"rope_theta": 1e999}'), "is too large"),
    ("NaN as JSON has none", holding(CONFIG, '{"rope_theta": NaN}'), "cannot be read as JSON"),
    ("a generation of nothing", holding(GENERATION, b""), "generation_config.json cannot"),
    ("a generation that is a list", holding(GENERATION, "[]"), "it must be an object"),
    ("a generation nested", holding(GENERATION, nested(10**5)), "recursion limit"),
    ("no config", replaced(CONFIG, lambda path: None), "has no config.json"),
    ("a folder for a config", replaced(CONFIG, Path.mkdir), "config.json is not a plain file"),
    ("a pipe for a config", replaced(CONFIG, os.mkfifo), "config.json is not a plain file"),
    ("a pipe for a generation", replaced(GENERATION, os.mkfifo), "is not a plain file"),
    ("a folder for weights", replaced(WEIGHTS, Path.mkdir), "model.safetensors is not a plain file"),
    ("a pipe for weights", replaced(WEIGHTS, os.mkfifo), "model.safetensors is not a plain file"),
    ("a pipe for a tokenizer", replaced(TOKENIZER, os.mkfifo), "tokenizer.json is not a plain file"),
    ("a folder for a template", replaced(TEMPLATE, Path.mkdir), "is not a plain file"),
    ("a pipe for a calibration", replaced("lengths.json", os.mkfifo), "is not a plain file"),
    (
        "a config of gigabytes",
        replaced(CONFIG, lambda path: (path.touch(), os.truncate(path, 2**33))),
        "at most 104857600 are read",
    ),
    (
        "a tokenizer of gigabytes",
        replaced(TOKENIZER, lambda path: (path.touch(), os.truncate(path, 2**33))),
        "at most 104857600 are read",
    ),
]

INSIDE = [
    ("a linked config", linked(CONFIG), "copy the file there"),
    ("a linked generation", linked(GENERATION), "outside of its folder"),
    ("linked weights", linked(WEIGHTS), "model.safetensors is a link to"),
    ("a linked index", linked(INDEX, "llada-tiny-sharded"), "index.json is a link to"),
    ("a linked shard", linked(SHARD, "llada-tiny-sharded"), f"{SHARD} is a link to"),
    (
        "a linked tokenizer",
        replaced(TOKENIZER, lambda path: path.symlink_to(EMBEDDED / "tiny-llada-base" / TOKENIZER)),
        "outside of its folder",
    ),
    ("a link to a device", replaced(CONFIG, lambda path: path.symlink_to("/dev/zero")), "/dev/zero"),
    ("a link to nothing", replaced(CONFIG, lambda path: path.symlink_to("gone")), "not a plain file"),
    ("a link to itself", replaced(CONFIG, lambda path: path.symlink_to(path)), "not a plain file"),
    (
        "a linked calibration",
        replaced("lengths.json", lambda path: path.symlink_to("/etc/hostname")),
        "lengths.json is a link to",
    ),
    ("a shard above", first_shard("../model.safetensors"), "does not lie in the folder"),
    ("a shard anywhere", first_shard("/etc/passwd"), "does not lie in the folder"),
    ("a shard below", first_shard("sub/model.safetensors"), "does not lie in the folder"),
    ("the folder above", first_shard(".."), "outside of its folder"),
    ("the folder itself", first_shard("."), "does not lie in the folder"),
    ("a shard without a name", first_shard(""), "not a plain file"),
    ("a shard with NUL", first_shard("model\0.safetensors"), r"lacks the weight files 'model\x00"),
    ("a shard of 5,000 letters", first_shard("m" * 5_000), "at most 255 characters"),
    ("a shard that is null", first_shard(None), "valid string"),
    ("a shard that is not there", first_shard("gone.safetensors"), "'gone.safetensors'"),
    ("a shard that is no shard", first_shard(CONFIG), "cannot be read as safetensors"),
    ("an index of nothing", index(weight_map={}), "weight_map={}"),
    ("an index without a map", index(weight_map=...), "lacks the field weight_map"),
    ("an index that is a list", index(weight_map=["a"]), "weight_map=['a']"),
    ("an index of lists", index(weight_map={"a": ["b"]}), "weight_map.a=['b']"),
    ("an index of others", index(weight_map={"a": "b"}), "tensors are missing"),
    ("a name of 5,000 letters", index(weight_map={"m" * 5_000: "a.safetensors"}), "at most 500 characters"),
    (
        "an index of 100,000 tensors",
        index(weight_map={f"layer.{i}": f"{i % 1_000}.safetensors" for i in range(100_000)}),
        "100000 are not part of the architecture",
    ),
    ("an index nested", holding(INDEX, nested(10**5), "llada-tiny-sharded"), "recursion limit"),
]

TENSORS = [
    ("int8", stored_as(torch.int8), f"tensor {NORM} in {WEIGHTS} is stored as I8"),
    ("uint8", stored_as(torch.uint8), "stored as U8"),
    ("int32", stored_as(torch.int32), "stored as I32"),
    ("int64", stored_as(torch.int64, EMBEDDING), "stored as I64"),
    ("truth values", stored_as(torch.bool), "stored as BOOL"),
    ("complex", stored_as(torch.complex64), "stored as C64"),
    ("float8", stored_as(torch.float8_e4m3fn), "stored as F8_E4M3"),
    ("NaN", tensors(lambda stored: stored[NORM].fill_(NAN)), f"tensor {NORM}"),
    ("one NaN", tensors(lambda stored: stored[HEAD][3, 4].fill_(NAN)), "NaN or Inf"),
    ("infinite", tensors(lambda stored: stored[EMBEDDING][0].fill_(-INF)), "NaN or Inf"),
    (
        "beyond float16",
        tensors(lambda stored: stored[NORM].fill_(1e6), dtype="float16"),
        "in torch.float16; load it in another dtype",
    ),
    ("a tied head that differs", llada(weight_tying=True), "stores another head"),
    (
        "a tied head of another shape",
        tensors(lambda stored: stored.update({HEAD: torch.zeros(3, 64)}), weight_tying=True),
        "has shape [3, 64]",
    ),
    ("no tensors", tensors(lambda stored: stored.clear()), "tensors are missing"),
    ("a tensor less", tensors(lambda stored: stored.pop(NORM)), f"first: {NORM}"),
    ("a tensor more", tensors(lambda stored: stored.update(extra=torch.zeros(1))), "'extra'"),
    ("a scalar", tensors(lambda stored: stored.update({NORM: torch.ones(())})), "has shape []"),
    ("half a file", holding(WEIGHTS, (GOLDEN / "llada-tiny" / WEIGHTS).read_bytes()[:9_999]), "safetensors"),
    ("a header without end", holding(WEIGHTS, b"\xff" * 64), "cannot be read as safetensors"),
    ("a pickle", holding(WEIGHTS, b"\x80\x04\x95" + b"x" * 99), "cannot be read as safetensors"),
]

TOKENIZERS = [
    ("settings nested", tokenizer("tokenizer_config.json", nested(10**5)), "recursion limit"),
    ("settings a list", tokenizer("tokenizer_config.json", "[]"), "tokenizer_config.json is not"),
    ("roles nested", tokenizer("special_tokens_map.json", nested(999)), "special_tokens_map.json"),
    ("additions twice", tokenizer("added_tokens.json", '{"a": 1, "a": 2}'), "'a' twice"),
    ("additions elsewhere", tokenizer("added_tokens.json", '{"<x>": 5}'), "'<x>' is stated"),
    ("a tokenizer nested", tokenizer(TOKENIZER, nested(10**5)), "cannot be used"),
    ("a tokenizer of bytes", tokenizer(TOKENIZER, b"\xff\xfe\x00"), "cannot be used"),
    ("a template nested", tokenizer(chat_template="{{ " + "(" * 9_999), "RecursionError"),
    ("a template of megabytes", tokenizer(chat_template="x" * (10**6 + 1)), "1000001 characters"),
    ("a template of bytes", tokenizer(TEMPLATE, b"\xff\xfe"), "UnicodeDecodeError"),
    ("a template that is a number", tokenizer(chat_template=5), "cannot be used"),
    (
        "more ids than the vocabulary",
        replaced(TOKENIZER, lambda path: shutil.copyfile(EMBEDDED / "tiny-llada-base" / TOKENIZER, path)),
        "a vocabulary of 384",
    ),
]
LOOP = "{% for a in range(99999) %}"
CHATS = [
    ("loops in loops", chat(LOOP * 3 + "{% endfor %}" * 3), PromptError, "lines and was stopped"),
    ("powers of powers", chat("{{ 9 ** 9 ** 9 }}"), PromptError, "may not compute with **"),
    ("text without end", chat("{{ 'a' * 1000000000 }}"), PromptError, "may not compute with *"),
    ("a range without end", chat("{{ range(10000000000) }}"), PromptError, "Range too big"),
    ("a macro of itself", chat("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), PromptError, "recursion"),
]

ASKED = [
    ("nothing", asked(None), WrongTypeError, "load(name=None) was given"),
    ("a number", asked(5), WrongTypeError, "load(name=5) was given, of type int"),
    ("bytes", asked(b"toy"), WrongTypeError, "load(name=b'toy')"),
    ("a list", asked(["toy"]), WrongTypeError, "load(name=['toy'])"),
    ("no letters", asked(""), CheckpointError, "there is no folder ''"),
    ("5,000 letters", asked("a" * 5_000), CheckpointError, "there is no folder 'aaaa"),
    ("5,000 letters of a hub", asked("a/" + "b" * 5_000), CheckpointError, "is not a local folder"),
    ("a home that is not there", asked("~nosuchuser/x"), SettingError, "home folder"),
    ("NUL", asked("a\0b"), CheckpointError, r"there is no folder 'a\x00b'"),
    ("a lone surrogate", asked("\ud800"), CheckpointError, r"'\ud800'"),
    ("a file", asked(GOLDEN / "llada-tiny" / CONFIG), CheckpointError, "there is no folder"),
    ("a device that is none", tiny(device="tpu0"), SettingError, "device='tpu0'"),
    ("a device without numbers", tiny(device="meta"), SettingError, "shapes and no numbers"),
    ("a device of nothing", tiny(device=""), SettingError, "device=''"),
    ("a device that is a number", tiny(device=0), WrongTypeError, "load(device=0)"),
    ("no device", tiny(device=None), WrongTypeError, "load(device=None)"),
    ("a dtype of four bits", tiny(dtype="int4"), SettingError, "dtype 'int4' is unknown"),
    ("a dtype of whole numbers", tiny(dtype=torch.int64), SettingError, "dtype torch.int64"),
    ("a dtype that is a class", tiny(dtype=float), WrongTypeError, "load(dtype=<class 'float'>)"),
    ("no dtype", tiny(dtype=None), WrongTypeError, "load(dtype=None)"),
    ("ends as text", tiny(turn_ends="380"), WrongTypeError, "load(turn_ends='380')"),
    ("ends as a number", tiny(turn_ends=380), WrongTypeError, "load(turn_ends=380)"),
    ("ends as bytes", tiny(turn_ends=b"abc"), WrongTypeError, "load(turn_ends=b'abc')"),
    ("ends as a tensor", tiny(turn_ends=torch.tensor([1, 2])), WrongTypeError, "load(turn_ends=tensor"),
    ("ends as a set", tiny(turn_ends={380}), WrongTypeError, "load(turn_ends={380})"),
    ("no ends", tiny(turn_ends=None), WrongTypeError, "load(turn_ends=None)"),
    ("an end as text", tiny(turn_ends=["380"]), WrongTypeError, "turn_ends='380'"),
    ("an end that is true", tiny(turn_ends=[True]), WrongTypeError, "turn_ends=True"),
    ("an end as a float", tiny(turn_ends=[380.0]), WrongTypeError, "turn_ends=380.0"),
    ("an end outside", tiny(turn_ends=[384]), SettingError, "at most 383"),
    ("an end below", tiny(turn_ends=[-1]), SettingError, "turn_ends=-1"),
    ("the mask as an end", tiny(turn_ends=[376]), SettingError, "also an end or pad id"),
    ("a revision of a folder", tiny(revision="main"), SettingError, "leave revision out"),
    (
        "a revision of an embedded model",
        asked("tiny-llada-base", revision="main"),
        SettingError,
        "only hub names have revisions",
    ),
    ("a revision that is a number", tiny(revision=5), WrongTypeError, "load(revision=5)"),
    ("a calibration that is a number", tiny(calibration=5), WrongTypeError, "load(calibration=5)"),
    ("a calibration yes or no", tiny(calibration=True), WrongTypeError, "load(calibration=True)"),
    ("a calibration not there", tiny(calibration="gone.json"), CheckpointError, "gone.json is no"),
    ("a calibration of nobody", tiny(calibration="~nosuchuser/x"), SettingError, "home folder"),
    ("a folder as a calibration", tiny(calibration=GOLDEN), CheckpointError, "not a regular file"),
    ("the toy on a GPU", asked("toy", device="cuda"), SettingError, "device"),
    ("the toy on no device", asked("toy", device="nowhere"), SettingError, "device='nowhere'"),
    ("the toy in four bits", asked("toy", dtype="int4"), SettingError, "dtype 'int4' is unknown"),
    ("the toy in halves", asked("toy", dtype="bfloat16"), SettingError, "computes in float64"),
    ("the toy's ends", asked("toy", turn_ends=[3]), SettingError, "leave turn_ends out"),
    ("the toy's revision", asked("toy", revision="main"), SettingError, "leave revision out"),
    ("the toy from a list", asked("toy", dtype=["float64"]), WrongTypeError, "load(dtype="),
    ("ids that are true", lambda _: TokenIds(mask=True, end=2, pad=2, vocab_size=8), WrongTypeError, "mask=True"),
]

DEEP = {"name": "stop-at-end"}
for _ in range(60):
    DEEP = {"name": "stop-at-end", "length": DEEP}

RECIPES = [
    ("a number for JSON", lambda _: Recipe.from_json(5), WrongTypeError, "Recipe.from_json(text=5)"),
    ("None for JSON", lambda _: Recipe.from_json(None), WrongTypeError, "text=None"),
    ("data for JSON", lambda _: Recipe.from_json({}), WrongTypeError, "text={}"),
    ("no JSON", recipe("{"), RecipeError, "not valid JSON"),
    ("no letters", recipe(""), RecipeError, "not valid JSON"),
    ("a lone surrogate", recipe('{"length": "\ud800"}'), RecipeError, "not valid JSON"),
    ("null", recipe("null"), RecipeError, "it must be an object"),
    ("nested without end", recipe(nested(10**5)), RecipeError, "recursion limit"),
    ("objects without end", recipe('{"length":' * 9_999), RecipeError, "recursion limit"),
    ("parts nested", recipe({"length": DEEP}), RecipeError, "nest at most 8"),
    ("lists nested", recipe({"block": json.loads(nested(150))}), RecipeError, "nest at most 8"),
    ("a choice twice", recipe('{"block": 3, "block": 4}'), RecipeError, "'block' twice"),
    ("a field twice", recipe('{"length": {"name": "fixed", "slots": 1, "slots": 2}}'), RecipeError, "twice"),
    ("NaN", recipe({"sampling": {"temperature": NAN}}), RecipeError, "not valid JSON"),
    ("infinite", recipe('{"sampling": {"temperature": 1e999}}'), RecipeError, "is too large"),
    ("a block beyond 64 bits", recipe({"block": 2**70}), SettingError, "block=1180591"),
    ("a block of 400 digits", recipe({"block": 10**400}), SettingError, "at most 1048576"),
    ("a block true", recipe({"block": True}), WrongTypeError, "block=True"),
    ("a block of lists", recipe({"block": [3]}), WrongTypeError, "block=(3,)"),
    ("a block of objects", recipe({"block": {"a": 1}}), RecipeError, "only where a part belongs"),
    ("a length null", recipe({"length": None}), RecipeError, "length is None"),
    ("a length of lists", recipe({"length": ["fixed"]}), RecipeError, "length is ['fixed']"),
    ("a length by number", recipe({"length": {"name": 5}}), RecipeError, "a part's name is text"),
    ("a length by null", recipe({"length": {"name": None}}), RecipeError, "has the name None"),
    ("an unknown choice", recipe({"lenght": "fixed"}), RecipeError, "did you mean 'length'"),
    ("a choice of 5,000 letters", recipe({"x" * 5_000: 1}), RecipeError, "has no field 'xxx"),
    (
        "slots without end",
        recipe({"length": {"name": "fixed", "slots": 2**63}}),
        SettingError,
        "Fixed(slots=9223372036854775808)",
    ),
    ("slots in an object", recipe({"length": {"name": "fixed", "slots": {"a": 1}}}), RecipeError, "slots is {'a': 1}"),
    ("an estimate null", recipe({"length": {"name": "survival", "estimate": None}}), RecipeError, "estimate"),
    (
        "a schedule of 400 digits",
        recipe({"unmask": {"name": "most-confident", "schedule": 10**400}}),
        SettingError,
        "recipe(tokens_per_step=1000",
    ),
    (
        "literals of objects",
        recipe({"commit": {"name": "prophet", "literals": [{"a": 1}]}}),
        RecipeError,
        "literals is {'a': 1}",
    ),
    (
        "literals of text",
        recipe({"commit": {"name": "prophet", "literals": "ab"}}),
        WrongTypeError,
        "pairs of a slot and a token id",
    ),
    ("sampling as a number", recipe({"sampling": 0.5}), RecipeError, "sampling is 0.5"),
    ("text nested", words("length", "stop-at-end:(" * 700 + ")" * 700), RecipeError, "nest at most"),
    ("text nested without brackets", words("length", "stop-at-end:" * 800), RecipeError, "nest at most"),
    ("text without end", words("length", "stop-at-end:(" * 10_000), RecipeError, "at most 10000"),
    ("brackets without end", words("length", "fixed:" + "(" * 9_000), RecipeError, "do not match"),
    ("lists without end", words("commit", f"prophet:literals={nested(2_000)}"), WrongTypeError, "pairs of"),
    ("a number of 5,000 digits", words("length", "fixed:" + "9" * 5_000), WrongTypeError, "whole number"),
    ("a number of 400 digits", words("length", "fixed:" + "9" * 400), SettingError, "at most 1048576"),
    ("NaN as text", words("unmask", "threshold:NaN"), WrongTypeError, "'NaN'"),
    ("infinite as text", words("unmask", "threshold:1e999"), SettingError, "threshold=inf"),
    ("an object as text", words("length", 'fixed:{"a":1}'), RecipeError, "only where a part belongs"),
    ("a number as text", words("length", "5"), RecipeError, "no length called '5'"),
    ("no text", words("length", ""), RecipeError, "no length called ''"),
]

CALIBRATIONS = [
    ("nothing", calibration_of(b""), "EOF"),
    ("a list", calibration_of(b"[]"), "it must be an object"),
    ("nested without end", calibration_of(b"[" * 10**5), "recursion limit"),
    ("other bytes", calibration_of(b"\x80\x81"), "lengths.json is not a calibration"),
    ("a field twice", calibration_of(b'{"limit": 1, "limit": 2}'), "'limit' twice"),
    ("an unknown field", calibration(colour="red"), "colour"),
    ("made with null", calibration(made_with=None), "made_with"),
    ("made with a list", calibration(made_with=[]), "made_with"),
    ("made with a recipe of text", calibration(made_with={"recipe": "x"}), "made_with.recipe"),
    ("made with a chat of text", calibration(made_with={"chat": "yes"}), "made_with.chat"),
    ("no weights", calibration(model_key=...), "model_key"),
    ("weights null", calibration(model_key=None), "model_key"),
    ("weights a number", calibration(model_key=5), "model_key"),
    ("weights of 5,000 letters", calibration(model_key="0" * 5_000), "at most 1000 characters"),
    ("a limit of nothing", calibration(limit=0), "limit"),
    ("a limit without end", calibration(limit=10**18), "limit"),
    ("a limit true", calibration(limit=True), "limit"),
    ("other ends", calibration(ends="all"), "ends"),
    ("an unknown interpretation", calibration(interpretation="tea leaves"), "Input should be 'hazard'"),
    ("an interpretation that is a list", calibration(interpretation=["hazard"]), "interpretation"),
    ("an estimate null", calibration(estimate=None), "estimate"),
    ("an estimate as text", calibration(estimate="mean"), "estimate"),
    ("an estimate of no name", calibration(estimate={"q": 0.5}), "estimate.name"),
    ("an estimate of another name", calibration(estimate={"name": "scaled"}), "Input should be 'mean'"),
    ("an estimate of other fields", calibration(estimate={"name": "mean", "q": 1}), "unexpected"),
    ("an estimate out of range", calibration(estimate={"name": "quantile", "q": 7}), "q=7"),
    ("an estimate of lists", calibration(estimate={"name": "quantile", "q": [1]}), "estimate.q: "),
    ("no families", calibration(families={}), "families"),
    ("families null", calibration(families=None), "families"),
    ("families without all", calibration(families={"a": {"ended": [1.0], "cut": 0}}), "'all'"),
    ("a family of nothing", calibration(families={"all": {"ended": [], "cut": 0}}), "at least one"),
    ("a family that is a list", calibration(families={"all": [1.0]}), "families.all"),
    ("ratios NaN", calibration(families={"all": {"ended": [NAN], "cut": 0}}), "not a calibration"),
    ("ratios zero", calibration(families={"all": {"ended": [0], "cut": 0}}), "families.all.ended.0"),
    ("ratios huge", calibration(families={"all": {"ended": [1e300], "cut": 0}}), "1000000000"),
    ("ratios as text", calibration(families={"all": {"ended": "1.0", "cut": 0}}), "ended"),
    ("ratios true", calibration(families={"all": {"ended": [True], "cut": 0}}), "ended.0"),
    ("cut below", calibration(families={"all": {"ended": [1.0], "cut": -1}}), "cut"),
    ("cut without end", calibration(families={"all": {"ended": [1.0], "cut": 10**15}}), "cut"),
    ("cut as text", calibration(families={"all": {"ended": [1.0], "cut": "2"}}), "cut"),
    ("cut left out", calibration(families={"all": {"ended": [1.0]}}), "families.all.truncated"),
]

CHECKPOINTS = {
    "config": CONFIGS,
    "bytes": BYTES,
    "inside": INSIDE,
    "tensors": TENSORS,
    "tokenizer": TOKENIZERS,
    "calibration": CALIBRATIONS,
}
ROWS = [
    *((f"{table}: {n}", act, CheckpointError, s) for table, r in CHECKPOINTS.items() for n, act, s in r),
    *((f"chat: {name}", *row) for name, *row in CHATS),
    *((f"load: {name}", *row) for name, *row in ASKED),
    *((f"recipe: {name}", *row) for name, *row in RECIPES),
]


@pytest.mark.parametrize(("act", "error", "phrase"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_it_is_refused_with_the_mistake_named(act, error, phrase, tmp_path):
    began = time.monotonic()
    with pytest.raises(error) as caught:
        act(tmp_path)
    assert type(caught.value) is error
    assert phrase in str(caught.value)
    assert len(str(caught.value)) < 1_500
    assert time.monotonic() - began < 20


def test_every_row_is_another():
    assert len({name for name, *_ in ROWS}) == len(ROWS) >= 120
