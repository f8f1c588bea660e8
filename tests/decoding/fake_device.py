"""A device that there is none of: its tensors mix with those of the CPU as little as a GPU's do.

It computes on the CPU. What it shows is code that makes a tensor in the wrong place: an error on every GPU,
and none on a machine without one.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from lastword.canvas.columns import cached_arange

DEVICE = torch.device("meta")  # no tensor of decoding is on it otherwise
aten = torch.ops.aten
# An index may lie on the host; what is copied lies where it lies.
MIXES = {aten.index.Tensor, aten.index_put_.default, aten._to_copy.default, aten.copy_.default}


class Elsewhere(torch.Tensor):
    """A tensor of that device."""

    held: torch.Tensor  # on the CPU

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    def __repr__(self):
        return f"Elsewhere({self.held})"

    def tolist(self):
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


class Computes(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


class Makes(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            return away(torch.tensor(*args, **{**kwargs, "device": "cpu"}))
        if function is torch.Tensor.__setitem__ and isinstance(args[1], tuple):
            places = tuple(torch.tensor(i) if isinstance(i, list) else i for i in args[1])
            args = (args[0], places, *args[2:])  # a list would become a real tensor of `DEVICE`
        return function(*args, **kwargs)


@contextmanager
def machine():
    """While it is on, what is made or sent there is Elsewhere."""
    cached_arange.cache_clear()  # other tests put tensors of another kind on the meta device
    with Computes(), Makes():
        yield


def computed(function, args, kwargs):
    every = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    there = [value for value in every if isinstance(value, Elsewhere)]
    here = [value for value in every if not isinstance(value, Elsewhere) and value.ndim]
    if there and here and function not in MIXES:
        raise RuntimeError(f"{function}: tensors on the device and on the CPU")
    asked = kwargs.get("device")
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = function(*tree_map(home, args), **tree_map(home, kwargs))
    if function is aten._local_scalar_dense.default or (asked or DEVICE).type == "cpu":
        return result
    if not there and asked is None:
        return result
    if function._schema.is_mutable and args and isinstance(args[0], Elsewhere):
        return args[0]
    return tree_map(lambda value: away(value) if isinstance(value, torch.Tensor) else value, result)


def home(value):
    return value.held if isinstance(value, Elsewhere) else value


def away(value):
    return value if isinstance(value, Elsewhere) else Elsewhere(value)


class Away:
    """A model whose device this is. Its network stays on the CPU: what it is asked and says crosses."""

    device = DEVICE

    def __init__(self, model):
        self.ids, self.max_seq_len = model.ids, model.max_seq_len
        self.default_max_new_tokens = model.default_max_new_tokens
        self.tokenizer, self.calibration = model.tokenizer, model.calibration
        self.supports_cache = model.supports_cache
        self._model = model

    def __call__(self, tokens, read, **given):
        assert isinstance(tokens, Elsewhere)
        assert isinstance(read, Elsewhere)
        return away(self._model(home(tokens), home(read), **{k: home(v) for k, v in given.items()}))
