"""What an operator says of replicas, and what is refused."""

import pytest

from lastword.errors import SettingError
from lastword.serve.ray.settings import Replicas, how_many


def test_a_number_or_two():
    assert how_many("2") == (2, 2)
    assert how_many(" 1:8 ") == (1, 8)
    assert not Replicas(2, 2).scales
    assert Replicas(1, 8).scales


@pytest.mark.parametrize("text", ["", "two", "1:", ":8", "-1", "1:2:3", "1.5"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(SettingError, match="1:8"):
        how_many(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 0},
        {"least": 3, "most": 2},
        {"cpus": -1.0},
        {"gpus": -1.0},
        {"seconds": 0.0},
        {"routing": "nearest"},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError):
        Replicas(**wrong)
