"""Parse device and dtype arguments."""

from __future__ import annotations

import torch

from lastword.errors import SettingError
from lastword.models.base import check_device
from lastword.validation import check_type, short_repr

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def as_device(device: str | torch.device) -> torch.device:
    """A device of this machine; "auto" takes a GPU where there is one."""
    if isinstance(device, str) and device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    return check_device("load", device)


def as_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """A dtype to compute in; None stands for "auto"."""
    check_type("load", "dtype", dtype, (str, torch.dtype), 'a dtype, as in "bfloat16"')
    if dtype == "auto":
        return None
    chosen = DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        known = ", ".join(DTYPES)
        raise SettingError(f"dtype {short_repr(dtype)} is unknown; give auto or one of {known}")
    return chosen
