"""The examples of docs/use/batch.md run, and its numbers and names are those of the code."""

import inspect
import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from lastword.batch.lines import RUN_FIELDS, AnswerLine
from lastword.batch.progress import MAX_PROBES
from lastword.batch.run import FACTS, MAX_FAILURES, PORTION
from lastword.cli import COMMANDS, main
from lastword.engines.local import MAX_ATTEMPTS, MIN_SLOTS
from tests.batch.batches import read_lines

PAGE = (Path(__file__).parent.parent.parent / "docs" / "use" / "batch.md").read_text()
FILES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
COMMAND_LINES = re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("content", "line"), list(zip(FILES, COMMAND_LINES)))
def test_the_commands_run_on_the_files_of_the_page(content, line, tmp_path, monkeypatch, capsys):
    words = shlex.split(line)
    monkeypatch.chdir(tmp_path)
    Path(words[2]).write_text(content)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    count = len(content.splitlines())
    assert capsys.readouterr().out.startswith(f"{count} answered, 0 failed; ")
    assert f"{count} answered" in PAGE or count == 2
    assert len(read_lines(Path(words[4]))) == count


def test_the_python_example_prints_the_output_of_the_page(tmp_path, monkeypatch):
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "example", "exec"), {})
    assert out.getvalue() == printed


def test_there_are_two_commands_and_two_files():
    assert len(FILES) == len(COMMAND_LINES) == 2


def test_all_fields_of_a_line_are_listed():
    table = PAGE.split("## What is written")[1].split("OpenAI's output")[0]
    listed = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    assert listed == list(AnswerLine.model_fields)


def test_numbers_and_names_are_those_of_the_code():
    assert f"up to {MAX_PROBES} of the prompts" in PAGE
    assert f"{MAX_FAILURES} in a row" in PAGE
    assert f"{PORTION:,} at a time" in PAGE
    assert f"less than {MIN_SLOTS} positions" in PAGE
    assert "tried twice" in PAGE
    assert MAX_ATTEMPTS == 2
    for name in RUN_FIELDS:
        assert f"`{name}`" in PAGE
    assert len(FACTS) == 8  # named in "Going on"


def test_the_options_of_the_page_exist():
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(COMMANDS["batch"]).parameters}
    for named in re.findall(r"`(--[a-z-]+)`", PAGE):
        assert named in options | {"--as-they-come"}
