"""A packed pass computes what the plain pass computes; here with the PyTorch code of the kernels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lastword
from lastword import decode
from lastword.canvas.columns import column_indices
from lastword.models import native
from lastword.models.kernels import fused
from lastword.models.kernels.attention import attend_one_row
from lastword.models.packed import PackedNetwork, Packing
from lastword.models.quantize import quantize
from lastword.models.storage import KVStorage, RowKVStorage
from lastword.models.weights import fingerprint, model_key
from lastword.policies.length.policy import LengthPolicy, Plan

MODELS = ("llada", "dream", "grouped")


@pytest.fixture(scope="module")
def grouped():
    """An embedded Dream: groups of heads share keys."""
    return lastword.load("tiny-dream-base", device="cpu")


@pytest.fixture(params=MODELS)
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def both(model, monkeypatch):
    """Return a function that computes the same call plainly and packed."""

    def run(*arguments, plain_storage=None, packed_storage=None, **keywords):
        monkeypatch.setattr(model, "packs", False)
        plain = model(*arguments, storage=plain_storage, **keywords)
        monkeypatch.setattr(model, "packs", True)
        return plain, model(*arguments, storage=packed_storage, **keywords)

    return run


def same(plain, packed):
    torch.testing.assert_close(packed, plain, atol=2e-5, rtol=1e-5)


TOKENS = torch.arange(36).view(3, 12) + 40
# Rows of different lengths, padded on both sides; side by side within a row.
VALID = torch.tensor([[1] * 12, [0] * 3 + [1] * 7 + [0] * 2, [0] * 1 + [1] * 4 + [0] * 7]).bool()
READ = column_indices(
    torch.tensor([[0] * 6 + [1] * 6, [0] * 5 + [1] * 5 + [0] * 2, [0] * 3 + [1] * 2 + [0] * 7]).bool()
)


def at(storage, rows):
    """Return the storage of some rows for a pass over all columns."""
    return RowKVStorage(storage, rows, None, torch.zeros_like(rows))


def uniform_at(storage, rows, columns, span=None):
    """Return the storage of some rows for a pass over the same number of columns in each."""
    computed = torch.full_like(rows, columns.shape[1])
    return RowKVStorage(storage, rows, columns, computed, uniform=True, span=span)


def test_rows_of_one_length(both):
    same(*both(TOKENS, READ))


def test_rows_of_unequal_length(both):
    same(*both(TOKENS, READ, valid=VALID))


def test_a_row_with_gaps(both):
    """Without storage the visible columns need not be adjacent."""
    gaps = VALID.clone()
    gaps[0, [2, 3, 8]] = False
    read = READ.clone()
    read[0] = torch.tensor([6, 7, 10, 11, 11, 11])
    same(*both(TOKENS, read, valid=gaps))


def filled(model, storage, tokens=TOKENS):
    """Return the storage after a plain pass over all columns."""
    every = torch.arange(12).expand(3, -1)
    model.network.hidden(tokens, VALID, every, at(storage, torch.arange(3)))
    return storage


def test_stale_columns_over_a_memory(model, both):
    stale = torch.zeros_like(VALID).scatter(1, READ, True)
    stale[0, 3:5] = True
    changed = TOKENS.clone()
    changed[stale] += 3
    storages = [filled(model, KVStorage(3, 12)) for _ in range(2)]
    rows, nothing = torch.arange(3), torch.zeros_like(stale)
    parts = [storage.at(rows, stale, nothing, nothing, VALID) for storage in storages]
    same(
        *both(
            changed, READ, valid=VALID, stale=parts[0].columns,
            plain_storage=parts[0], packed_storage=parts[1],
        )
    )  # fmt: skip
    assert torch.equal(parts[0].tokens_computed, parts[1].tokens_computed)
    for layer in range(model.network.config.num_layers):
        like = torch.zeros(1, model.network.config.num_kv_heads, 1, model.network.config.head_dim)
        for plain, packed in zip(*(storage.by_row(layer, like) for storage in storages)):
            torch.testing.assert_close(packed, plain, atol=2e-5, rtol=1e-5)


def test_some_rows_of_a_memory(model, both):
    storages = [filled(model, KVStorage(3, 12)) for _ in range(2)]
    rows, stale = torch.tensor([0, 2]), torch.tensor([[7, 8], [3, 4]])
    parts = [at(storage, rows) for storage in storages]
    same(
        *both(
            TOKENS[rows] + 1, stale, valid=VALID[rows], stale=stale,
            plain_storage=parts[0], packed_storage=parts[1],
        )
    )  # fmt: skip


def test_all_columns_into_a_memory(model, both):
    parts = [at(KVStorage(3, 12), torch.arange(3)) for _ in range(2)]
    same(*both(TOKENS, READ, valid=VALID, plain_storage=parts[0], packed_storage=parts[1]))


BLOCK = torch.tensor([[6, 7, 8], [5, 6, 7], [2, 3, 4]])


@pytest.mark.parametrize("reads", [[0, 1, 2], [1, 2]])
def test_rows_with_the_same_number_of_columns(model, both, monkeypatch, reads):
    storages = [filled(model, KVStorage(3, 12)) for _ in range(2)]
    rows = torch.arange(3)
    plain = at(storages[0], rows)
    packed = uniform_at(storages[1], rows, BLOCK)
    read = BLOCK[:, reads]
    logits = both(TOKENS + 1, read, valid=VALID, stale=BLOCK, plain_storage=plain, packed_storage=packed)
    same(*logits)
    monkeypatch.setattr(model, "packs", False)
    uniform = uniform_at(filled(model, KVStorage(3, 12)), rows, BLOCK)
    same(logits[0], model(TOKENS + 1, read, valid=VALID, stale=BLOCK, storage=uniform))
    shifted = model.architecture.shifted_logits
    assert packed.tokens_computed.tolist() == [3 + (shifted and 0 in reads)] * 3
    if shifted:
        assert torch.equal(packed.tokens_computed, plain.tokens_computed)


def test_such_a_pass_does_not_wait_for_the_device(model, monkeypatch):
    """A captured pass can neither read a number back nor find the true entries of a mask."""
    storage = filled(model, KVStorage(3, 12))
    monkeypatch.setattr(model, "packs", True)
    from lastword.models import packed

    # The PyTorch code of attention reads counts on the host; the kernel does not.
    monkeypatch.setattr(packed, "attend", lambda query, keys, values, rows: query)
    rows = uniform_at(storage, torch.arange(3), BLOCK)

    def refuse(*_, **__):
        raise AssertionError("the pass waits for the device")

    for name in ("item", "tolist", "nonzero", "__bool__", "__int__", "__index__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    model(TOKENS, BLOCK, valid=VALID, stale=BLOCK, storage=rows)


def test_such_a_pass_is_packed_in_few_kernels(model):
    """A launch costs more than such a kernel."""
    storage = uniform_at(filled(model, KVStorage(3, 12)), torch.arange(3), BLOCK)
    Packing.from_columns(TOKENS, BLOCK, VALID, BLOCK, storage)  # fills the cache of ranges
    with Launches() as seen:
        packing = Packing.from_columns(TOKENS, BLOCK, VALID, BLOCK, storage)
    assert len(seen.names) <= 10, seen.names
    assert packing.rows.key_starts.tolist()[:3] == [0, 12 + 3, 24 + 1]
    assert packing.rows.key_counts.tolist() == [12, 7, 4]
    assert packing.positions.view(3, 3).tolist() == [[6, 7, 8], [2, 3, 4], [1, 2, 3]]
    assert packing.read.flatten().tolist() == [*range(9)]


class Launches(TorchDispatchMode):
    """Records the operations that compute something; views do not."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        views = any(result.alias_info for result in operation._schema.returns)
        out = "out" in operation._overloadname
        if (out or not views) and not operation.name().startswith("aten::empty"):
            self.names.append(operation.name())
        return operation(*arguments, **keywords or {})


@pytest.mark.parametrize("opening", [False, True])
def test_the_host_knows_the_keys_of_a_single_row(model, both, monkeypatch, opening):
    """Its attention can then be computed without offsets."""
    from lastword.models import packed

    alone = []

    def attend(query, keys, values, rows):
        alone.append(rows.span)
        return attend_one_row(query, keys[rows.span], values[rows.span])

    monkeypatch.setattr(packed, "attend", attend)
    arguments = {"valid": VALID[1:2]}
    if opening:
        row, whole, span = torch.tensor([0]), torch.arange(3, 10)[None], slice(3, 10)
        arguments |= {
            "plain_storage": at(KVStorage(1, 12), row),
            "packed_storage": uniform_at(KVStorage(1, 12), row, whole, span=span),
            "stale": whole,
        }
    same(*both(TOKENS[1:2] + 1, torch.arange(5, 10)[None], **arguments))
    assert {*map(str, alone)} == {str(slice(3, 10) if opening else slice(0, 7))}


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_the_mlp_of_many_columns_is_computed_some_at_a_time(golden, monkeypatch, quantization):
    from lastword.models import packed

    model = lastword.load(golden / "dream-tiny", device="cpu", quantization=quantization)
    model.packs = True
    whole = model(TOKENS, READ, valid=VALID)
    lengths = []

    def silu_mul(wide, dtype):
        lengths.append(len(wide if isinstance(wide, torch.Tensor) else wide.values))
        return fused.silu_mul(wide, dtype)

    monkeypatch.setattr(packed, "silu_mul", silu_mul)
    wide = 2 * model.network.config.intermediate_size
    monkeypatch.setattr(packed, "MAX_MLP_NUMBERS", 10 * wide)
    torch.testing.assert_close(model(TOKENS, READ, valid=VALID), whole, atol=1e-4, rtol=1e-4)
    assert lengths == [8, 8, 7] * model.network.config.num_layers  # 23 columns, in three parts


def test_a_first_column_predicts_itself(grouped, monkeypatch):
    """Shifted logits are read at the column before; a row's first column has none, padded or not."""
    monkeypatch.setattr(grouped, "packs", True)
    alone = grouped(TOKENS[1:2, 3:10], torch.tensor([[0, 1]]))
    together = grouped(TOKENS, torch.tensor([[0, 1], [3, 4], [1, 2]]), valid=VALID)
    torch.testing.assert_close(together[1:2], alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
def test_packing_keeps_names_values_and_memory(golden, name):
    model = lastword.load(golden / name, device="cpu")
    before, key = fingerprint(model), model_key(model)
    names, sizes = [*model.state_dict()], sum(_bytes(model).values())
    model.packs = True
    model(TOKENS, READ)
    assert (fingerprint(model), model_key(model), [*model.state_dict()]) == (before, key, names)
    weights = {layer.qkv.weight.untyped_storage().data_ptr() for layer in model.network.packed.blocks}
    assert weights <= _bytes(model).keys()
    assert sum(_bytes(model).values()) == sizes


def _bytes(*modules):
    """Return the bytes of every tensor behind the parameters, shared ones once."""
    stores = [p.untyped_storage() for module in modules for p in module.parameters()]
    return {store.data_ptr(): store.nbytes() for store in stores}


def test_a_model_that_was_cast_is_packed_anew(golden):
    model = lastword.load(golden / "dream-tiny", device="cpu")
    model.packs = True
    model(TOKENS, READ)
    packed = model.double()(TOKENS, READ)
    model.packs = False
    torch.testing.assert_close(packed, model(TOKENS, READ))
    assert packed.dtype == torch.float64


def test_a_model_that_was_quantized_is_packed_anew(golden):
    model = lastword.load(golden / "dream-tiny", device="cpu")
    model.packs = True
    before = model(TOKENS, READ)
    quantize(model.network, "fp8")
    packed = model(TOKENS, READ)
    model.packs = False
    torch.testing.assert_close(packed, model(TOKENS, READ), atol=2e-2, rtol=2e-2)
    assert not torch.equal(packed, before)


@pytest.mark.parametrize("change", ["quantize", "cast"])
def test_weights_that_were_replaced_are_gone(golden, change):
    """The packed network must not hold them until the next pass."""
    model = lastword.load(golden / "llada-tiny", device="cpu")
    products = sum(_bytes(model.network.blocks).values())
    before = sum(_reachable(model).values())
    model.packs = True
    model(TOKENS, READ)
    assert before <= sum(_reachable(model).values()) < before + 1000  # frequencies of rotations
    if change == "cast":
        model.half()
        assert sum(_reachable(model).values()) == before / 2
        return
    quantize(model.network, "fp8")
    norms = sum(_bytes(*(b for b in model.network.blocks.modules() if "Norm" in type(b).__name__)).values())
    scales = 4 * sum(len(p) for n, p in model.named_parameters() if n.endswith("scale"))
    assert sum(_reachable(model).values()) == before - 3 * (products - norms) / 4 + scales


def _reachable(model):
    """Return the bytes of every tensor that the model keeps alive, shared ones once."""
    stores, seen, waiting = {}, set(), [model]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            store = thing.untyped_storage()
            stores[store.data_ptr()] = store.nbytes()
        if isinstance(thing, (list, tuple, dict)):
            waiting += thing.values() if isinstance(thing, dict) else thing
        elif type(thing).__module__.startswith(("lastword.models", "torch.nn")):
            waiting += vars(thing).values()
    return stores


class Horizons(LengthPolicy):
    """A given horizon for each row."""

    def __init__(self, horizons):
        self.horizons = horizons

    def plan(self, probe):
        return Plan(torch.tensor(self.horizons))


@pytest.mark.parametrize(("weights", "is_packed"), [(None, True), ("fp8", False)])
def test_passes_on_a_cpu_are_packed_unless_weights_are_in_fp8(golden, weights, is_packed):
    model = lastword.load(golden / "llada-tiny", device="cpu", dtype="bfloat16", quantization=weights)
    model(TOKENS, READ)
    assert model.is_packed == is_packed == (model.network.packed is not None)


def test_a_pass_computes_neither_padding_nor_logits_that_are_not_read(golden, monkeypatch):
    model = lastword.load(golden / "llada-tiny", device="cpu", dtype="float32")
    computed = Counter()
    hidden, head = PackedNetwork.hidden, model.network.head.forward
    monkeypatch.setattr(
        PackedNetwork, "hidden", lambda self, packing, *rest: (
            computed.update(columns=len(packing.tokens)) or hidden(self, packing, *rest)
        ),
    )  # fmt: skip
    monkeypatch.setattr(
        model.network.head, "forward", lambda x: computed.update(logits=x.shape[:-1].numel()) or head(x)
    )
    recipe = lastword.Recipe(length=Horizons((4, 8)))
    *_, last = steps = list(decode(model, [[5], [5, 6, 7, 8, 9]], recipe))
    assert computed["columns"] == last.cost.tokens_computed.sum()
    assert computed["logits"] == sum(step.prediction.columns.read.sum() for step in steps) == 4 + 3 + 2 + 1 + 8 * 9 / 2


def test_many_rows_are_computed_in_parts(golden, monkeypatch):
    model = lastword.load(golden / "dream-tiny", device="cpu", dtype="float32")
    recipe = lastword.Recipe(length=Horizons((4, 8, 6)), cache=lastword.DualCache(), block=4)
    prompts = [[5], [5, 6, 7, 8, 9], [5, 6]]
    whole = list(decode(model, prompts, recipe))
    calls = Counter()
    hidden = PackedNetwork.hidden
    monkeypatch.setattr(
        PackedNetwork, "hidden", lambda self, packing, *rest: (
            calls.update(rows=len(packing.read), passes=1) or hidden(self, packing, *rest)
        ),
    )  # fmt: skip
    monkeypatch.setattr(native, "MAX_COLUMNS_CPU", 16)
    parts = list(decode(model, prompts, recipe))
    assert calls["rows"] < 2 * calls["passes"]
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.canvas.tokens, other.canvas.tokens)
        torch.testing.assert_close(one.prediction.logits, other.prediction.logits, atol=1e-5, rtol=0)
