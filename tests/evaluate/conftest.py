"""Datasets for the tests of the bridge."""

import pytest


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Datasets written for these tests where the harness looks first; anything beyond is refused."""
    from tests.evaluate import mirror

    with mirror.in_place(tmp_path_factory.mktemp("hub"), mirror.written) as folder:
        yield folder
