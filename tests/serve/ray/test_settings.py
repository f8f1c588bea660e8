"""What an operator says of replicas, and what is refused."""

import pytest

from lastword.errors import SettingError
from lastword.serve.settings import ReplicaSettings, parse_replicas


def test_a_number_or_two():
    assert parse_replicas("2") == (2, 2)
    assert parse_replicas(" 1:8 ") == (1, 8)
    assert not ReplicaSettings(2, 2).scales
    assert ReplicaSettings(1, 8).scales


@pytest.mark.parametrize("text", ["", "two", "1:", ":8", "-1", "1:2:3", "1.5"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(SettingError, match="1:8"):
        parse_replicas(text)


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
        ReplicaSettings(**wrong)
