"""Whatever a file of others holds: reading it gives a value, or one of our errors."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st

from lastword.calibration import Calibration, Ratios
from lastword.errors import CheckpointError, RecipeError, SettingError
from lastword.models.architectures import DreamConfig, LLaDAConfig
from lastword.models.config import GenerationConfig, WeightIndex
from lastword.models.tokenizer import Tokenizer
from lastword.models.weights import check_files, tensor_files
from lastword.policies.length.wrappers import Budget
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import PARTS
from lastword.recipe.text import parse_part, to_text
from lastword.survival.distribution import Quantile
from lastword.survival.interpretation import Hazard
from tests.bad_inputs.mutations import EXAMPLES, hold, mutated_bytes

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(path: str) -> dict:
    return json.loads((GOLDEN / path).read_text())


CALIBRATION = json.loads(
    Calibration(
        model_key="0123456789abcdef",
        limit=64,
        interpretation=Hazard(),
        estimate=Quantile(0.5),
        families={"all": Ratios((0.5, 1.25, 2.0), 1), "sums": Ratios((1.5,))},
        made_with={"lastword": "0", "coverage": 0.9, "chat": None, "recipe": {"block": 8}},
    ).to_json()
)
RECIPES = [
    Recipe(
        length=parse_part("length", "default:96"),
        unmask=parse_part("unmask", "leftmost-first:(threshold:0.8)"),
        cache=parse_part("cache", "feature"),
        block=32,
        sampling=parse_part("sampling", "sampling:temperature=0.5"),
    ),
    Recipe(
        length=parse_part("length", "survival:64,estimate=(scaled:2.0,estimate=quantile:0.9)"),
        unmask=parse_part("unmask", "most-confident:(timesteps:2.0,eps=0.01)"),
        commit=parse_part("commit", "prophet:literals=[[3,5],[9,7]]"),
    ),
]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "any.json"


def refused_or(read, *errors):
    """Reading may raise these errors; anything else fails the test."""

    def check(given):
        with suppress(*errors):
            read(given)

    return check


CONFIGS = {
    "LLaDA": (LLaDAConfig, golden("llada-tiny/config.json")),
    "Dream": (DreamConfig, golden("dream-tiny/config.json")),
}


@EXAMPLES
@pytest.mark.parametrize("family", CONFIGS)
def test_any_config(examples, family, file):
    kind, good = CONFIGS[family]

    def read(data):
        file.write_bytes(data)
        kind.read(file).transformer()

    read(json.dumps(good).encode())
    hold(examples, mutated_bytes(good), refused_or(read, CheckpointError))


@EXAMPLES
def test_any_generation_config(examples, file):
    good = {**golden("dream-tiny/generation_config.json"), "eos_token_id": [1, 2], "max_new_tokens": 9}

    def read(data):
        file.write_bytes(data)
        GenerationConfig.read(file)

    read(json.dumps(good).encode())
    hold(examples, mutated_bytes(good), refused_or(read, CheckpointError))


@EXAMPLES
def test_any_weight_index(examples, tmp_path):
    good = golden("llada-tiny-sharded/model.safetensors.index.json")
    names = dict.fromkeys(good["weight_map"], "ours")
    for shard in set(good["weight_map"].values()):
        (tmp_path / shard).touch()

    def read(data):
        (tmp_path / "model.safetensors.index.json").write_bytes(data)
        check_files(tmp_path, tensor_files(tmp_path), names, "head")

    read(json.dumps(good).encode())
    hold(examples, mutated_bytes(good), refused_or(read, CheckpointError))


@EXAMPLES
def test_any_calibration(examples, file):
    def read(data):
        file.write_bytes(data)
        Calibration.from_file(file)

    read(json.dumps(CALIBRATION).encode())
    hold(examples, mutated_bytes(CALIBRATION), refused_or(read, CheckpointError))


@EXAMPLES
def test_any_tokenizer_settings(examples, tmp_path):
    embedded = Path("lastword/embedded/tiny-llada-instruct")
    folder = Path(__file__).parents[2] / embedded
    ready = (folder / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(ready)
    good = json.loads((folder / "tokenizer_config.json").read_text())

    def read(data):
        (tmp_path / "tokenizer_config.json").write_bytes(data)
        Tokenizer.from_folder(tmp_path)

    read(json.dumps(good).encode())
    hold(examples // 5, mutated_bytes(good), refused_or(read, CheckpointError))


@EXAMPLES
@pytest.mark.parametrize("good", RECIPES, ids=["default", "survival"])
def test_any_recipe(examples, good):
    documents = mutated_bytes(json.loads(good.to_json())).map(lambda data: data.decode(errors="replace"))
    assert Recipe.from_json(good.to_json()) == good
    hold(examples, documents, refused_or(Recipe.from_json, RecipeError, SettingError))


TEXTS = sorted(
    {to_text(cls(max_passes=9) if cls is Budget else cls()) for parts in PARTS.values() for cls in parts.values()}
    | {"stop-at-end:(survival:512,interpretation=auto)", "default:96", "scaled:2,estimate=quantile:0.9"}
    | {'prophet:literals=[[1,2]],measure="gap"', "most-confident:timesteps:2", "0.5", "true", "NaN"}
)
SIGNS = [*"()[]{}:,=\"'\\ ", "1e999", "9" * 400]
STARTS = ["limit=", "length=", "schedule=", "stop-at-end:", "stop-at-end:(", "leftmost-first:"]
PIECES = st.sampled_from([*TEXTS, *SIGNS, *STARTS])
PART_TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join) | st.tuples(
    PIECES | st.sampled_from(STARTS), st.sampled_from([0, 2, 30, 300, 800, 5_000])
).map(lambda repeated: repeated[0] * repeated[1])


@EXAMPLES
def test_any_recipe_text(examples):
    def read(drawn):
        axis, text = drawn
        parse_part(axis, text)

    hold(
        examples,
        st.tuples(st.just("length") | st.sampled_from(sorted(PARTS)), PART_TEXTS),
        refused_or(read, RecipeError, SettingError),
    )


def test_the_good_index_is_read():
    good = golden("llada-tiny-sharded/model.safetensors.index.json")
    path = GOLDEN / "llada-tiny-sharded/model.safetensors.index.json"
    assert WeightIndex.read(path).weight_map == good["weight_map"]
