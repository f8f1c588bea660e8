"""docs/map.md shows every module as its docstring says, and README every folder."""

import re

from benchmarks import map as pages

README = (pages.ROOT / "README.md").read_text()


def test_the_map_is_what_the_docstrings_say():
    """`python -m benchmarks.map` writes it."""
    assert pages.PAGE.read_text() == pages.written()


def test_a_module_says_in_a_line_what_it_is():
    for folder in pages.folders():
        for module in folder.glob("*.py"):
            line = pages.first_line(module)
            assert 15 <= len(line) <= 110, f"{module}: {line}"
            assert line.endswith((".", "?")), f"{module}: {line}"


def tree() -> dict[str, str]:
    """Folder -> what it holds, from the indented tree in README."""
    block = re.search(r"## Folders\n.*?```text\n(.*?)```", README, re.DOTALL)
    assert block, "README has no tree under '## Folders'"
    listed, above = {}, []
    for line in block[1].splitlines():
        name, _, holds = line.strip().partition("  ")
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], name.rstrip("/")]
        listed["/".join(above)] = holds.strip()
    return listed


def test_the_readme_lists_every_folder_with_what_it_holds():
    listed = tree()
    packages = {str(folder.relative_to(pages.ROOT)) for folder in pages.folders()}
    outer = {folder for folder in packages if folder.count("/") <= 1}
    assert outer <= set(listed), f"missing in README: {sorted(outer - set(listed))}"
    for folder, holds in listed.items():
        assert (pages.ROOT / folder).exists(), f"README lists {folder}, which is not there"
        assert holds, f"README does not say what {folder} holds"
