"""The command line, run in this process."""

import io
import sys

import pytest

from lastword.cli import main


@pytest.fixture
def command(capsys, monkeypatch):
    """Run a command line: exit code, standard output, standard error."""

    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "argv", ["lastword", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as exit_error:
            main()
        output = capsys.readouterr()
        return exit_error.value.code, output.out, output.err

    return run
