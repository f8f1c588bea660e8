"""README and docs say what is true: links lead somewhere, and the commands run."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.warm import warm_interpreter

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Examples that need a server, or files that their page shows: tests/serve and tests/batch run them.
ASKING = ("docs/use/http-api.md", "docs/use/operate.md", "docs/commands/batch.md")
EVALUATION = (ROOT / "docs" / "commands" / "eval.md").read_text()
SLOW = re.compile(r"^lastword (bench|calibrate|demo|drift|eval)\b|benchmarks/records|--workers")  # most of a minute


@pytest.fixture(scope="module")
def run():
    """Run an example, or the words of a command, in a plain interpreter; return its standard output.

    With `stderr`, standard error is appended. Other keyword arguments are environment variables.
    """
    with warm_interpreter() as warm:

        def run(*words, code=None, stdin=b"abc", stderr=False, **environment):
            status, out, err = warm(ROOT, *words, code=code, stdin=stdin, **environment)
            assert status == 0, err
            return out + err if stderr else out

        yield run


def code_blocks(language: str) -> list[tuple[str, str, str | None]]:
    """Return (path of a page, code, output that the page shows below it or None) of each block that is run."""
    shape = re.compile(rf"(<!-- not run: .*? -->\n)?```{language}\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
    return [
        (path, code, printed or None)
        for page in PAGES
        if (path := page.relative_to(ROOT).as_posix()) not in ASKING
        for not_run, code, printed in shape.findall(page.read_text())
        if not not_run
    ]


def python_examples() -> list[object]:
    """Those that start workers take their time."""
    return [
        pytest.param(*example, marks=[pytest.mark.full] * ("workers=" in example[1]))
        for example in code_blocks("python")
    ]


@pytest.mark.parametrize(("page", "block", "printed"), python_examples())
def test_python_examples_run(page, block, printed, run):
    if re.search(r"^[^#\n]*(GSAI-ML|Dream-org)/", block, re.MULTILINE):  # a comment may name them
        compile(block, page, "exec")  # the real weights are 16 GB: checked for syntax only
        return
    out = run(code=block)
    assert printed in (None, out)


def first_evaluation() -> list[str]:
    return re.search(r"```bash\n(.*?)```", EVALUATION, re.DOTALL)[1].splitlines()


def shell_commands() -> list[object]:
    """Return (page, lines of a block that run `lastword`, output shown) of each block but the first evaluation.

    The lines of a block run one after the other, because one may read a file that an earlier one wrote.
    """
    examples: list[object] = []
    for page, block, printed in code_blocks("bash"):
        lines = re.findall(r'^(?:echo "[^"]*" \| )?lastword .*', block.replace("\\\n", " "), re.MULTILINE)
        lines = [line for line in lines if "GSAI-ML/" not in line and "Dream-org/" not in line]
        if lines and lines != first_evaluation():
            marks = [pytest.mark.full] * any(map(SLOW.search, lines))
            examples.append(pytest.param(page, lines, printed, marks=marks, id=f"{page}: {lines[0]}"))
    return examples


@pytest.mark.parametrize(("page", "lines", "printed"), shell_commands())
def test_commands_run(page, lines, printed, run):
    """In shown output, `...` stands for any text of a line or for any lines."""
    out = "".join(run(*words, stdin=stdin, stderr=True, COLUMNS="80") for words, stdin in map(parse_line, lines))
    if printed is not None:
        assert re.fullmatch(re.escape(strip_lines(printed)).replace(r"\.\.\.", ".*"), strip_lines(out), re.DOTALL), out


def parse_line(line: str) -> tuple[list[str], bytes]:
    """Return the words after `lastword` of a line of a shell, and the standard input that `echo` gives it."""
    words = shlex.split(line, comments=True)
    stdin = f"{words[1]}\n".encode() if words[0] == "echo" else b"abc"
    return words[words.index("lastword") + 1 :], stdin


def strip_lines(text: str) -> str:
    return "\n".join(map(str.rstrip, text.splitlines()))


@pytest.mark.full
def test_the_first_evaluation_ends_as_its_page_says(tmp_path, run):
    """All but the seconds, which are another machine's."""
    shown = re.search(r"```text\n(.*?)```", EVALUATION, re.DOTALL)[1]
    for command in first_evaluation():
        printed = run(*shlex.split(command)[1:], "--out", str(tmp_path), "--device", "cpu")
    assert [line.rsplit("|", 2)[0] for line in printed.splitlines()] == [
        line.rsplit("|", 2)[0] for line in shown.splitlines()
    ]


# ---- links ----


def prose(page: Path) -> str:
    """A page without its code: what stands there is no link and no heading."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Where a link into the page may lead: its headings as GitHub names them, and names of the code."""
    text, found = prose(page), []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    again = [f"{name}-{nth}" for name in set(found) for nth in range(1, found.count(name))]
    return {*found, *again, *re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


def links(page: Path) -> list[tuple[str, str]]:
    """Where a page's links lead within the repository: a path and an anchor, either of them empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(page))
    return [(path, anchor) for path, anchor in found if "://" not in path]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            known = anchors(target)
            assert anchor in known, f"{page.name} links to {path}#{anchor}; known: {sorted(known)}"


def test_a_link_is_looked_at_and_code_is_not(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three?\n\n[a](#one-two-three) [b](other.md#x)\n```text\n[c](no)\n```\n")
    assert links(page) == [("", "one-two-three"), ("other.md", "x")]
    assert anchors(page) == {"one-two-three"}
