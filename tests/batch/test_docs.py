"""The examples of docs/commands/batch.md run, and its numbers and names are those of the code."""

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.main import get_command

from lastword.batch.lines import AnswerLine, PlainLine
from lastword.batch.run import MAX_FAILURES
from lastword.cli import app, main
from lastword.engines.local import MIN_SLOTS
from lastword.io.prompts import PromptLine
from tests.batch.batches import read_lines

PAGE = (Path(__file__).parent.parent.parent / "docs" / "commands" / "batch.md").read_text()
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
    table = PAGE.split("## Output")[1].split("\nAnswers are appended")[0]
    listed = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|")))
    assert listed == list(AnswerLine.model_fields)


def test_all_settings_of_an_input_line_are_listed():
    settings = PAGE.split("settings that replace those of the command:")[1].split(". A misspelt")[0]
    own = [name for name in PlainLine.model_fields if name not in PromptLine.model_fields]
    assert sorted(re.findall(r"`(\w+)`", settings)) == sorted(name for name in own if name != "max_tokens")


def test_numbers_are_those_of_the_code():
    assert f"After {MAX_FAILURES} failures in a row" in PAGE
    assert f"less than {MIN_SLOTS} slots" in PAGE


def test_the_options_of_the_page_exist():
    options = {option for parameter in get_command(app).commands["batch"].params for option in all_names(parameter)}
    named = re.findall(r"`(--[a-z-]+)", PAGE)
    assert named
    assert set(named) <= {*options, "--help"}


def all_names(parameter):
    return [*parameter.opts, *parameter.secondary_opts]
