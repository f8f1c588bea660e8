"""What the paper's tables print, for the columns beside ours."""

from __future__ import annotations

Published = dict[str, dict[str, str]]


def published(table: Published, model: str, benchmark: str) -> str:
    """What the paper reports for the family and kind of model this one is, if it does."""
    name = model.lower()
    family = "Dream" if "dream" in name else "LLaDA" if "llada" in name else ""
    kind = f"{family}{' Instruct' if 'instruct' in name else ''}"
    return table.get(kind, {}).get(benchmark, "")


SPEED: Published = {
    "LLaDA": {"BBH": "73, 14 (5.2x)", "GSM8K": "91, 16 (5.2x)", "MATH": "76, 23 (3.3x)",
              "HumanEval": "54, 9 (6.0x)", "MBPP": "80, 26 (3.1x)"},
    "Dream": {"BBH": "56.3, 10.5 (5.4x)", "GSM8K": "81.4, 12.3 (6.6x)", "MATH": "64.5, 16.1 (4.0x)",
              "HumanEval": "53.0, 16.6 (3.2x)", "MBPP": "64.8, 16.6 (3.9x)"},
}  # fmt: skip
ACCURACY: Published = {
    "LLaDA": {"BBH": "49.5 ± 0.6, 51.8 ± 0.6", "GSM8K": "69.9 ± 1.3, 70.0 ± 1.3",
              "MATH": "31.6 ± 0.6, 31.0 ± 0.6", "HumanEval": "32.3 ± 3.7, 33.5 ± 3.7",
              "MBPP": "40.0 ± 2.0, 40.2 ± 2.1"},
    "Dream": {"BBH": "63.7 ± 0.5, 63.8 ± 0.5", "GSM8K": "74.5 ± 1.2, 74.6 ± 1.2",
              "MATH": "39.6 ± 0.7, 39.5 ± 0.7", "HumanEval": "58.0 ± 3.7, 59.0 ± 3.7",
              "MBPP": "58.0 ± 2.0, 58.0 ± 2.0"},
}  # fmt: skip
FIXED_MEAN: Published = {
    "LLaDA": {"BBH": "537 ± 204, -3.2 ± 0.7", "GSM8K": "278 ± 29, -2.8 ± 1.8",
              "MATH": "498 ± 64, -0.6 ± 0.8", "HumanEval": "382 ± 57, -1.8 ± 5.2",
              "MBPP": "495 ± 44, 0.0 ± 3.0"},
    "Dream": {"BBH": "482 ± 176, -2.7 ± 0.6", "GSM8K": "270 ± 52, -2.6 ± 1.8",
              "MATH": "390 ± 62, -0.7 ± 0.9", "HumanEval": "396 ± 107, -2.3 ± 5.2",
              "MBPP": "378 ± 95, -2.0 ± 3.0"},
}  # fmt: skip
DAEDAL_SPEED: Published = {
    "LLaDA Instruct": {"GSM8K": "89, 28 (3.2x), 14 (6.4x)", "MATH": "75, 41 (1.8x), 20 (3.8x)",
                       "HumanEval": "53, 22 (2.4x), 8 (6.6x)", "MBPP": "78, 68 (1.1x), 23 (3.4x)"},
    "Dream Instruct": {"GSM8K": "80, 22 (3.6x), 11 (7.3x)", "MATH": "64, 38 (1.7x), 15 (4.3x)",
                       "HumanEval": "53, 20 (2.7x), 14 (3.8x)", "MBPP": "63, 54 (1.2x), 15 (4.2x)"},
}  # fmt: skip
DAEDAL_ACCURACY: Published = {
    "LLaDA Instruct": {"GSM8K": "78.6 ± 1.4, 79.2 ± 1.3, 79.5 ± 1.5",
                       "MATH": "26.6 ± 0.7, 26.9 ± 0.8, 27.1 ± 0.7",
                       "HumanEval": "47.6 ± 3.6, 48.3 ± 3.5, 48.2 ± 3.7",
                       "MBPP": "34.2 ± 2.1, 34.8 ± 2.2, 35.5 ± 2.0"},
    "Dream Instruct": {"GSM8K": "81.4 ± 1.3, 81.5 ± 1.4, 82.1 ± 1.2",
                       "MATH": "39.2 ± 0.8, 39.7 ± 0.9, 40.1 ± 0.8",
                       "HumanEval": "55.5 ± 3.9, 56.1 ± 3.8, 56.6 ± 4.0",
                       "MBPP": "58.8 ± 1.9, 59.5 ± 2.0, 59.1 ± 1.8"},
}  # fmt: skip
DRIFT: Published = {
    "LLaDA": {"BBH": "0.5 ± 2.3, 8.2 ± 7.6, 7.2 ± 8.6, 8.4 ± 9.5",
              "GSM8K": "3.8 ± 4.2, 4.1 ± 5.6, 4.2 ± 5.8, 4.2 ± 6.3",
              "MATH": "-1.9 ± 6.3, 7.0 ± 6.7, 7.4 ± 7.8, 8.0 ± 9.3",
              "HumanEval": "2.7 ± 3.1, 4.5 ± 8.3, 9.4 ± 7.9, 6.9 ± 7.9",
              "MBPP": "-0.8 ± 1.2, 4.0 ± 6.2, 8.2 ± 8.1, 8.5 ± 9.2"},
}  # fmt: skip
