"""GGUF files that are damaged, hostile or of other models: each is refused with one sentence, little memory and time.

A row: a name, what is done to a good file, a phrase that the message must hold.
"""

from __future__ import annotations

import resource
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

import lastword
from lastword.errors import CheckpointError
from tests.bad_inputs.mutations import EXAMPLES, hold
from tests.models.gguf_files import Content, Kind, Type, content_of

GOLDEN = Path(__file__).parent.parent / "golden"
NAN, INF = float("nan"), float("inf")
FORMATS = {
    **{Type.UINT8: "B", Type.INT8: "b", Type.UINT16: "H", Type.INT16: "h", Type.UINT32: "I", Type.INT32: "i"},
    **{Type.FLOAT32: "f", Type.BOOL: "?", Type.UINT64: "Q", Type.INT64: "q", Type.FLOAT64: "d"},
}


def number(value, code="Q"):
    return struct.pack(f"<{code}", value)


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return number(len(data)) + data


def payload(kind, value):
    """The bytes of a value after its type; an array has the type of its first element."""
    if kind == Type.STRING:
        return text(value)
    if kind == Type.ARRAY:
        inner = Type.get_type(value[0])
        return number(inner, "I") + number(len(value)) + b"".join(payload(inner, entry) for entry in value)
    return number(value, FORMATS[kind])


@dataclass
class File:
    """A GGUF file in parts, each of which can be wrong; the bytes of a value begin with its type."""

    content: Content
    magic: bytes = b"GGUF"
    version: int = 3
    value_count: int | None = None
    tensor_count: int | None = None
    more_values: list[bytes] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)  # offsets
    shapes: dict[str, list[int]] = field(default_factory=dict)  # as in the file: columns first
    kinds: dict[str, int] = field(default_factory=dict)
    more_tensors: list[bytes] = field(default_factory=list)
    padding: int = 32

    def header(self):
        values = [
            text(key) + (value if isinstance(value, bytes) else number(value[0], "I") + payload(*value))
            for key, value in self.content.values.items()
        ]
        values += self.more_values
        infos, place = [], 0
        for name, (data, kind) in self.content.tensors.items():
            shape = self.shapes.get(name, [*data.shape[::-1]])
            dimensions = number(len(shape), "I") + b"".join(map(number, shape))
            kind = number(self.kinds.get(name, kind), "I")
            infos.append(text(name) + dimensions + kind + number(self.places.get(name, place)))
            place += -(-data.nbytes // 32) * 32
        infos += self.more_tensors
        counts = [len(infos) if self.tensor_count is None else self.tensor_count]
        counts += [len(values) if self.value_count is None else self.value_count]
        return self.magic + number(self.version, "I") + b"".join(map(number, counts)) + b"".join(values + infos)

    def bytes(self):
        header = self.header()
        data = (tensor.tobytes() for tensor, _ in self.content.tensors.values())
        blocks = (block + b"\0" * (-len(block) % 32) for block in data)
        return header + b"\0" * (-len(header) % self.padding) + b"".join(blocks)


def good():
    """A small LLaDA with a tokenizer of single bytes."""
    content = content_of(GOLDEN / "llada-tiny")
    tokens = [*sorted(ByteLevel.alphabet()), *(f"<{index}>" for index in range(256, 384))]
    tokens[256] = tokens[0] + tokens[1]
    content.values |= {
        "tokenizer.ggml.model": (Type.STRING, "gpt2"),
        "tokenizer.ggml.pre": (Type.STRING, "bailingmoe"),
        "tokenizer.ggml.tokens": (Type.ARRAY, tokens),
        "tokenizer.ggml.token_type": (Type.ARRAY, [1] * 257 + [3] * 127),
        "tokenizer.ggml.merges": (Type.ARRAY, [f"{tokens[0]} {tokens[1]}"]),
        "tokenizer.ggml.bos_token_id": (Type.UINT32, 353),
        "tokenizer.chat_template": (Type.STRING, "{{ messages[0]['content'] }}"),
    }
    return File(content)


def test_the_good_file_loads(tmp_path):
    (tmp_path / "model.gguf").write_bytes(good().bytes())
    model = lastword.load(tmp_path / "model.gguf", device="cpu")
    assert len(model.tokenizer.encode('ab!"')) == 3  # the last two are merged


def data(content):
    """Other bytes instead of the file."""
    return lambda file: content


def cut(part):
    """The first bytes of the file: a share of them, or all but some."""
    return lambda file: file.bytes()[: int(part * len(file.bytes())) if isinstance(part, float) else part]


def parts(**changes):
    """Other parts of the file."""

    def change(file):
        for name, value in changes.items():
            setattr(file, name, value)

    return change


def values(**changes):
    """Other values, by the ends of their keys, in which `__` is a dot.

    `...` removes a value, bytes stand as they are, a pair has its type, and any other value keeps the type.
    """

    def change(file):
        for key, value in changes.items():
            key = key.replace("__", ".")
            key = next((k for k in file.content.values if k.endswith(key)), key)
            if value is ...:
                del file.content.values[key]
            elif isinstance(value, (bytes, tuple)):
                file.content.values[key] = value
            else:
                file.content.values[key] = file.content.values[key][0], value

    return change


def listed(key, change):
    """A list of the tokenizer, changed in place or replaced."""

    def act(file):
        kind, entries = file.content.values[f"tokenizer.ggml.{key}"]
        changed = change([*entries])
        file.content.values[f"tokenizer.ggml.{key}"] = kind, changed

    return act


def tensors(change):
    return lambda file: change(file.content.tensors)


def weights(name, value):
    """One number of a tensor replaced."""

    def change(stored):
        array, kind = stored[name]
        array = array.copy()
        array.flat[3] = value
        stored[name] = array, kind

    return tensors(change)


EMBEDDING, QUERY, NORM, UP = "token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight", "blk.1.ffn_up.weight"
ARRAY, STRING, U8, F32 = (number(kind, "I") for kind in (Type.ARRAY, Type.STRING, Type.UINT8, Type.FLOAT32))
TABLE = "tokenizer.ggml.scores"  # a key that nothing reads


def array(kind, count, rest=b""):
    return ARRAY + kind + number(count) + rest


BYTES = [
    ("nothing", data(b""), "cannot be read as GGUF"),
    ("five bytes", cut(5), "cannot be read as GGUF"),
    ("a header cut in half", lambda file: file.header()[: len(file.header()) // 2], "cannot be read as GGUF"),
    ("a header alone", lambda file: file.header(), "must lie between bytes"),
    ("a file cut in half", cut(0.5), "must lie between bytes"),
    ("all but the last block", cut(-32), "must lie between bytes"),
    ("a web page", data(b"<!DOCTYPE html><html><body>Not Found</body></html>"), "it begins with b'<!DO'"),
    (
        "a pointer",
        data(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
        "it begins with b'vers'",
    ),
    ("zeros", data(bytes(10**6)), "version 0"),
    ("noise", data(np.random.default_rng(0).bytes(10**5)), "it begins with"),
    ("a safetensors file", data((GOLDEN / "llada-tiny" / "model.safetensors").read_bytes()), "it begins with"),
    ("the format before GGUF", parts(magic=b"ggjt"), "b'ggjt'"),
    ("big-endian", parts(magic=b"FUGG"), "b'FUGG'"),
    ("a big-endian version", parts(version=3 << 24), "version 50331648"),
    ("version 1", parts(version=1), "version 1,"),
    ("version 4", parts(version=4), "version 4,"),
]

COUNTS = [
    ("values without end", parts(value_count=2**63), "cannot be read as GGUF"),
    ("a value too many", lambda file: setattr(file, "value_count", len(file.content.values) + 1), "as GGUF"),
    ("a value too few", lambda file: setattr(file, "value_count", len(file.content.values) - 1), "as GGUF"),
    ("no values", parts(value_count=0), "cannot be read as GGUF"),
    ("tensors without end", parts(tensor_count=2**64 - 1), "cannot be read as GGUF"),
    ("no tensors", parts(tensor_count=0), "lacks"),
    ("a key without end", parts(more_values=[number(2**63)], value_count=99), "as GGUF"),
    ("text without end", values(**{TABLE: STRING + number(2**40)}), "a value of 1099511627776 bytes"),
    ("text of 2**64 bytes", values(**{TABLE: STRING + number(2**64 - 1)}), "as GGUF"),
    ("bytes without end", values(**{TABLE: array(U8, 2**62)}), "a value of 4611686018427387904 bytes"),
    ("numbers without end", values(**{TABLE: array(F32, 2**64 - 1)}), "as GGUF"),
    ("texts without end", values(**{TABLE: array(STRING, 2**61)}), "as GGUF"),
    ("empty texts without end", values(**{TABLE: array(STRING, 2**61, bytes(2**25))}), "as GGUF"),
    ("an array of arrays", values(**{TABLE: array(ARRAY, 2, 2 * (U8 + number(0)))}), "in an array has the type 9"),
    ("arrays nested without end", values(**{TABLE: ARRAY * 10**5}), "in an array has the type 9"),
    ("an unknown type", values(**{TABLE: number(13, "I")}), "a value has the type 13"),
    ("a type of 2**31", values(**{TABLE: number(2**31, "I")}), "a value has the type 2147483648"),
    ("an array of an unknown type", values(**{TABLE: array(number(99, "I"), 2)}), "in an array has the type 99"),
    ("a header of 40 MB", values(**{TABLE: STRING + text(b"x" * 40_000_000)}), "a value of 40000000 bytes"),
    ("a key twice", parts(more_values=[text("general.architecture") + STRING + text("llada")]), "twice"),
    ("a key that is not UTF-8", parts(more_values=[text(b"\xff\xfe") + U8 + b"\1"]), "utf-8"),
    ("an architecture that is not UTF-8", values(architecture=STRING + text(b"llad\xe4")), "utf-8"),
    ("a tensor name that is not UTF-8", parts(more_tensors=[text(b"\xc3(") + bytes(100)]), "utf-8"),
    ("alignment 0", values(alignment=0), "general.alignment is 0"),
    ("alignment 48", values(alignment=48), "general.alignment is 48"),
    ("alignment below 0", values(alignment=(Type.INT32, -32)), "general.alignment is -32"),
    ("alignment as text", values(alignment=(Type.STRING, "32")), "general.alignment is '32'"),
    ("alignment NaN", values(alignment=(Type.FLOAT32, NAN)), "general.alignment is nan"),
    ("another alignment", values(alignment=4096), "must lie between bytes"),
]

TENSORS = [
    ("a tensor twice", parts(more_tensors=[text(NORM) + number(1, "I") + number(64) + bytes(12)]), "is listed twice"),
    ("no dimensions", parts(shapes={NORM: []}), "has 0 dimensions"),
    ("five dimensions", parts(shapes={NORM: [64, 1, 1, 1, 1]}), "has 5 dimensions"),
    ("dimensions without end", parts(more_tensors=[text("x") + number(2**32 - 1, "I")]), "has 4294967295 dim"),
    ("transposed", parts(shapes={UP: [160, 64]}), "has shape [64, 160]"),
    ("one dimension too few", parts(shapes={QUERY: [64 * 64]}), "has shape [4096]"),
    ("no rows", parts(shapes={QUERY: [64, 0]}), "has shape [0, 64]"),
    ("2**63 columns", parts(shapes={QUERY: [2**63, 64]}), "has shape [64, 9223372036854775808]"),
    ("2**40 rows of embedding", parts(shapes={EMBEDDING: [64, 2**40]}), "has shape [1099511627776, 64]"),
    ("a place after the file", parts(places={NORM: 2**30}), "occupies bytes"),
    ("a place after 2**64", parts(places={NORM: 2**64 - 32}), "occupies bytes"),
    ("all in one place", lambda file: file.places.update(dict.fromkeys(file.content.tensors, 0)), "occupies bytes"),
    ("two in one place", parts(places={QUERY: 0}), "occupies bytes"),
    ("a type that does not exist", parts(kinds={QUERY: 77}), "has the type 77"),
    ("a type of 2**32", parts(kinds={QUERY: 2**32 - 1}), "has the type 4294967295"),
    ("a type that was removed", parts(kinds={QUERY: 4}), "has the type 4,"),
    ("two bits", parts(kinds={QUERY: Kind.Q2_K}), "has the type Q2_K"),
    ("integers", parts(kinds={NORM: Kind.I32}), "has the type I32"),
    ("blocks larger than rows", parts(kinds={QUERY: Kind.Q4_K}), "blocks of 256"),
    ("no norm", tensors(lambda tensors: tensors.pop(NORM)), "first: 'output_norm.weight'"),
    ("no embedding", tensors(lambda tensors: tensors.pop(EMBEDDING)), "lacks 1 tensors of LLaDA"),
    ("a layer too few", values(block_count=4), "lacks 9 tensors"),
    ("a layer too many", values(block_count=2), "has 9 others"),
    ("factors of rotation", tensors(lambda t: t.update({"rope_freqs.weight": t[NORM]})), "rope_freqs.weight"),
    ("a bias", tensors(lambda t: t.update({"blk.0.attn_q.bias": t[NORM]})), "blk.0.attn_q.bias"),
    ("a name of 50,000 letters", tensors(lambda t: t.update({"x" * 50_000: t[NORM]})), "has 1 others"),
    ("NaN", weights(QUERY, NAN), "holds NaN or Inf"),
    ("Inf", weights(EMBEDDING, INF), "holds NaN or Inf"),
]

HYPERPARAMETERS = [
    ("no architecture", values(architecture=...), "general.architecture=None"),
    ("another architecture", values(architecture="llama"), "general.architecture='llama'; supported are llada, dream"),
    ("an architecture by number", values(architecture=(Type.UINT32, 3)), "general.architecture=3"),
    ("architectures", values(architecture=(Type.ARRAY, ["llada"])), "general.architecture=['llada']"),
    ("Dream in name only", values(architecture="dream"), "lacks the field"),
    ("no layers", values(block_count=0), "block_count=0"),
    ("layers not stated", values(block_count=...), "lacks the field block_count"),
    ("layers without end", values(block_count=2**32 - 1), "block_count=4294967295"),
    ("layers as text", values(block_count=(Type.STRING, "3")), "block_count='3'"),
    ("layers as a list", values(block_count=(Type.ARRAY, [3, 3])), "block_count=[3, 3]"),
    ("layers true", values(block_count=(Type.BOOL, True)), "block_count=True"),
    ("no width", values(embedding_length=0), "embedding_length=0"),
    ("a width below 0", values(embedding_length=(Type.INT32, -64)), "embedding_length=-64"),
    ("a fraction of a width", values(embedding_length=(Type.FLOAT32, 63.5)), "embedding_length=63.5"),
    ("a list of 10**6 widths", values(feed_forward_length=array(U8, 10**6, bytes(10**6))), "feed_forward_length=[0"),
    ("heads that do not divide", values(head_count=3), "3 heads"),
    ("groups that do not divide", values(head_count_kv=3), "3 key-value heads"),
    ("part of a head rotated", values(dimension_count=8), "rope.dimension_count is 8, not 16"),
    ("epsilon NaN", values(rms_epsilon=NAN), "rms_epsilon=nan"),
    ("epsilon 0", values(rms_epsilon=0.0), "rms_epsilon=0.0"),
    ("base NaN", values(freq_base=NAN), "freq_base=nan"),
    ("base infinite", values(freq_base=INF), "freq_base=inf"),
    ("a causal model", values(attention__causal=True), "attention.causal=True"),
    ("scaled rotation", values(**{"llada.rope.scaling.type": (Type.STRING, "yarn")}), "rope.scaling.type='yarn'"),
    ("a context without end", values(context_length=2**31), "context_length=2147483648"),
    ("one of three parts", values(**{"split.count": (Type.UINT16, 3)}), "split.count=3"),
    ("shifted in words", values(shift_logits=(Type.STRING, "yes")), "diffusion.shift_logits='yes'"),
    ("another vocabulary", values(vocab_size=400), "400 rows of embedding"),
    ("no mask", values(mask_token_id=...), "lacks the field tokenizer.ggml.mask_token_id"),
    ("no end", values(eos_token_id=...), "lacks the field tokenizer.ggml.eos_token_id"),
    ("a mask outside", values(mask_token_id=384), "mask=384"),
    ("an end outside", values(eos_token_id=2**31), "eos_token_id"),
    ("a mask that ends", values(mask_token_id=353), "cannot be decoded with"),
]


def first(entries, value):
    return [value, *entries[1:]]


TOKENIZERS = [
    ("SentencePiece", values(ggml__model="llama"), "tokenizer.ggml.model='llama'"),
    ("other pieces", values(ggml__pre="llama-bpe"), "tokenizer.ggml.pre='llama-bpe'"),
    ("pieces not stated", values(ggml__pre=...), "lacks the field tokenizer.ggml.pre"),
    ("no tokens", values(ggml__tokens=...), "lacks the field tokenizer.ggml.tokens"),
    ("a token too few", listed("tokens", lambda tokens: tokens[:-1]), "383 tokens"),
    ("a token twice", listed("tokens", lambda tokens: [*tokens[:-1], tokens[0]]), "383 different"),
    ("tokens as one text", values(ggml__tokens=(Type.STRING, "abc")), "tokens='abc'"),
    ("tokens by number", values(ggml__tokens=(Type.ARRAY, [1] * 384)), "tokens.0=1"),
    ("a token that is not UTF-8", values(ggml__tokens=array(STRING, 1, text(b"\xff"))), "utf-8"),
    ("a type too few", listed("token_type", lambda types: types[:-1]), "383 types"),
    ("an unknown kind of token", listed("token_type", lambda types: first(types, 7)), "token_type.0=7"),
    ("no merges", values(merges=...), "lacks the field tokenizer.ggml.merges"),
    ("a merge of one part", listed("merges", lambda merges: ["ab"]), "cannot be used"),
    ("a merge of three parts", listed("merges", lambda merges: ["a b c"]), "cannot be used"),
    ("a merge of no token", listed("merges", lambda merges: ["a zz"]), "out of vocabulary"),
    ("a merge that gives no token", listed("merges", lambda merges: ["a b"]), "out of vocabulary"),
    ("a byte missing", listed("tokens", lambda tokens: first(tokens, "<0>")), "cannot be used"),
    ("bytes unused", listed("token_type", lambda types: [5] * 256 + types[256:]), "cannot be used"),
    ("a start outside", values(bos_token_id=400), "list index out of range"),
    ("a broken template", values(chat_template="{% for x in %}"), "TemplateSyntaxError"),
    ("a template of 2 MB", values(chat_template="a" * 2_000_000), "at most 1000000"),
    ("a template by number", values(chat_template=(Type.UINT32, 5)), "chat_template=5"),
]

TABLES = {"bytes": BYTES, "counts": COUNTS, "tensors": TENSORS, "sizes": HYPERPARAMETERS, "tokenizer": TOKENIZERS}
ROWS = [(f"{table}: {name}", *row) for table, rows in TABLES.items() for name, *row in rows]


def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize(("change", "phrase"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_it_is_refused_with_the_mistake_named(change, phrase, tmp_path):
    file = good()
    replaced = change(file)
    path = tmp_path / "model.gguf"
    path.write_bytes(replaced if isinstance(replaced, bytes) else file.bytes())
    began, before = time.monotonic(), peak()
    with pytest.raises(CheckpointError) as caught:
        lastword.load(path, device="cpu")
    assert type(caught.value) is CheckpointError
    assert phrase in str(caught.value)
    assert "model.gguf" in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert time.monotonic() - began < 20
    assert peak() - before < 300e6


def test_every_row_is_another():
    assert len({name for name, *_ in ROWS}) == len(ROWS) >= 50


@EXAMPLES
def test_any_header(examples, tmp_path):
    """A header with bytes replaced, removed or added: the file loads, or is refused."""
    path, content = tmp_path / "model.gguf", good().bytes()
    end = len(good().header())
    places = st.integers(0, end - 1)
    pieces = st.binary(max_size=9) | st.sampled_from([bytes(8), b"\xff" * 8, number(2**63), number(1), number(9, "I")])
    edits = st.lists(st.tuples(places, st.integers(0, 12), pieces), min_size=1, max_size=3)

    def read(edits):
        changed = content
        for place, removed, added in edits:
            changed = changed[:place] + added + changed[place + removed :]
        path.write_bytes(changed)
        with suppress(CheckpointError):
            lastword.load(path, device="cpu")

    hold(examples, edits, read)
