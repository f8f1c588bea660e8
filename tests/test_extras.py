"""Advice on a missing extra is a command that works, wherever the package came from."""

import json
import shlex

import pytest

from lastword import extras


class Written:
    """A distribution that has something written about its source."""

    def __init__(self, text):
        self.text = text

    def read_text(self, name):
        return self.text if name == "direct_url.json" else None


@pytest.fixture(autouse=True)
def activated(monkeypatch, tmp_path):
    """A Python whose pip a shell finds."""
    monkeypatch.setattr(extras.sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setattr(extras, "which", lambda name: str(tmp_path / ".venv" / "bin" / name))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """As if the package lay in site-packages, with this written beside it."""

    def made(written):
        monkeypatch.setattr(extras, "CLONE", tmp_path / "site-packages")
        monkeypatch.setattr(extras, "distribution", lambda name: Written(written))

    return made


def test_in_a_clone_the_clone_is_installed(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "CLONE", tmp_path)
    assert extras.install("plot") == f"pip install -e '{tmp_path}[plot]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install("ray", "serve") == "pip install -e '.[ray,serve]'"


@pytest.mark.parametrize(
    ("source", "requirement"),
    [
        ({"url": "file:///home/my%20own/lastword", "dir_info": {}}, "/home/my own/lastword[eval]"),
        (
            {"url": "https://example.org/lastword.git", "vcs_info": {"vcs": "git"}},
            "lastword[eval] @ git+https://example.org/lastword.git",
        ),
        (
            {"url": "file:///home/me/lastword-0.1.0-py3-none-any.whl", "archive_info": {}},
            "lastword[eval] @ file:///home/me/lastword-0.1.0-py3-none-any.whl",
        ),
        ({}, "lastword[eval]"),
        ([], "lastword[eval]"),
    ],
    ids=["folder", "git", "wheel", "index", "junk"],
)
def test_elsewhere_the_source_that_was_written_down(installed, source, requirement):
    installed(json.dumps(source))
    words = shlex.split(extras.install("eval"))
    assert words == ["pip", "install", requirement]


@pytest.mark.parametrize("written", [None, "", "{", "\x00"])
def test_what_cannot_be_read_says_nothing(installed, written):
    installed(written)
    assert extras.install("plot") == "pip install 'lastword[plot]'"


def test_a_package_nobody_installed(monkeypatch, tmp_path):
    def absent(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "CLONE", tmp_path)
    monkeypatch.setattr(extras, "distribution", absent)
    assert extras.install("plot") == "pip install 'lastword[plot]'"


@pytest.mark.parametrize("found", ["/usr/bin/pip", None])
def test_where_a_shell_finds_another_pip_the_python_is_named(monkeypatch, tmp_path, found):
    """`.venv/bin/lastword` of an environment that is not activated: `pip` would install elsewhere."""
    monkeypatch.setattr(extras, "which", lambda name: found)
    assert extras.pip() == f"{tmp_path}/.venv/bin/python -m pip"
    monkeypatch.chdir(tmp_path)
    assert extras.pip() == ".venv/bin/python -m pip"
