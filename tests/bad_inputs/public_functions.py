"""Feeds every parameter of every public function what does not belong there; run in a plain interpreter.

Prints, as JSON, how many calls were made and those that ended in an error that is not ours.
"""

import inspect
import json
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import lastword

warnings.filterwarnings("ignore")

TOY = lastword.load("toy")
HAZARD = torch.full((9, 5), 0.3)
LENGTHS = lastword.LengthDistribution(HAZARD)

ALL = {"all": lastword.Ratios((1.0,))}

# What a call needs beside the parameter that is wrong.
NEEDED = {
    "Adapter": {"forward": lambda tokens: tokens, "ids": TOY.ids},
    "Budget": {"max_passes": 9},
    "Calibration": {
        "model_key": "w",
        "limit": 5,
        "interpretation": lastword.Hazard(),
        "estimate": lastword.Mean(),
        "families": ALL,
    },
    "RowGenerators": {"seeds": [1]},
    "EndSignal": {"document": HAZARD, "turn": HAZARD, "text_slots": torch.zeros(9).long()},
    "LengthDistribution": {"hazard": HAZARD},
    "Plan": {"horizon": torch.tensor([3])},
    "Ratios": {"ended": (1.0,)},
    "TokenIds": {"mask": 1, "end": 2, "pad": 2, "vocab_size": 5},
    "calibrate": {"model": TOY, "prompts": ["b"] * 9, "limit": 8},
    "conformal_factor": {"predicted": [8.0] * 9, "finished": [5] * 9, "coverage": 0.9},
    "decode": {"model": TOY, "prompts": [[1]], "recipe": lastword.Recipe(length=lastword.Fixed(4))},
    "generate": {"model": TOY, "prompt": "abc", "length": "fixed:4"},
    "load": {"name": "toy"},
    "predict_length": {"model": TOY, "prompt": "abc"},
    "min_samples": {"coverage": 0.9},
    "save_lengths": {"lengths": LENGTHS.row(0), "path": Path("/dev/null/no.png")},
    "save_rows": {"lengths": LENGTHS, "titles": ["a"] * 9, "path": Path("/dev/null/no.png")},
    "resolve": {"recipe": lastword.Recipe(), "model": TOY},
    "token_probabilities": {"logits": torch.ones(2, 3), "ids": [1]},
    "stream": {"model": TOY, "prompt": "abc", "length": "fixed:4"},
    "upper_bound": {"lengths": LENGTHS, "finished": [5] * 9},
}
# Contracts to subclass, errors, and what the library itself makes.
NO_CALLS = {
    "BeyondTrainingWarning", "Cache", "Choice", "CommitRule", "NativeModel", "Finish", "Frame", "Generation",
    "LastwordError", "LengthPolicy", "MaskPredictor", "Probe", "Interpretation", "Schedule", "Step",
    "TextTokenizer", "Tokenizer", "UnmaskRule", "__version__",
}  # fmt: skip
# Where a file is written is tested with those who write it.
WRITTEN = {"path"}


class Odd:
    """Nothing of ours."""


def wrong_values() -> Iterator[object]:
    """Made anew each time: a generator is spent by who reads it."""
    yield from (None, True, 3, -1, 0.5, float("nan"), 10**30, 1j, "abc", "\ud800", b"ab", [], ["a"])
    yield from ([None], [[[1]]], {}, {"a": 1}, {1, 2}, {1: 2}.keys(), memoryview(b"ab"), range(3))
    yield from (object(), Odd, Odd(), len, lambda: None, (n for n in [1]), Path("x"))
    yield from (torch.tensor([True]), torch.tensor(0.5), torch.ones(1, 3), np.array([True]))
    yield from (lastword.Recipe(), lastword.Fixed(4), lastword.Mean(), lastword.Toy)


def main() -> None:
    calls, raw = 0, []
    for name in sorted({*lastword.__all__} - NO_CALLS):
        function = getattr(lastword, name)
        for parameter in inspect.signature(function).parameters.keys() - WRITTEN:
            for value in wrong_values():
                if parameter == "on_step" and callable(value):
                    continue  # what a caller's own function raises is the caller's
                calls += 1
                try:
                    made = function(**{**NEEDED.get(name, {}), parameter: value})
                    if name in ("decode", "stream"):
                        next(made)
                except lastword.LastwordError:
                    pass
                except Exception as error:
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    place = f"{Path(frame.filename).name}:{frame.lineno}"
                    given = f"{name}({parameter}={type(value).__name__})"
                    raw.append(f"{given}: {type(error).__name__}: {error} ({place})")
    print(json.dumps({"calls": calls, "raw": raw}))


if __name__ == "__main__":
    main()
