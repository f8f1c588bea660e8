"""docs/use/cluster.md names every option, and says of every command whether it was run."""

import inspect
import re
from pathlib import Path

from lastword.cli import COMMANDS
from lastword.serve.settings import ReplicaSettings, ServerSettings

PAGE = (Path(__file__).parents[3] / "docs" / "use" / "cluster.md").read_text()


def test_every_option_of_replicas_is_named():
    elsewhere = {"model", "name", "host", "port", "key-file", "without-key", "device", "dtype"}
    elsewhere |= {"weights"}
    limits = {*ServerSettings.__dataclass_fields__, "named-only"}
    options = {name.replace("_", "-") for name in inspect.signature(COMMANDS["serve"]).parameters}
    for name in options - elsewhere - limits:
        assert f"`--{name}" in PAGE, name


def test_numbers_are_those_of_the_code():
    usual = ReplicaSettings()
    assert f"`--work` ({usual.seconds:g}" in PAGE
    assert f"`--up` ({usual.up:g})" in PAGE
    assert f"`--down` ({usual.down:g})" in PAGE


def test_every_command_says_whether_it_was_run():
    blocks = re.findall(r"(<!-- not run: [^\n]+ -->\n)?```(?:bash|yaml)\n", PAGE)
    assert blocks
    assert all(blocks)
