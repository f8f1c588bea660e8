"""docs/use/extend.md shows the files it speaks of as they are."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = (
    "lastword/unmask/local_leap.py",
    "lastword/unmask/__init__.py",
    "tests/unmask/test_local_leap.py",
)


def test_the_diffs_are_what_the_files_hold():
    page = (ROOT / "docs" / "use" / "extend.md").read_text()
    diffs = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert len(diffs) == len(SHOWN)
    for name, diff in zip(SHOWN, diffs):
        added = [line[1:] for line in diff.splitlines()]
        held = "\n" + (ROOT / name).read_text()
        assert "\n" + "\n".join(added) + "\n" in held, f"{name} differs from docs/use/extend.md"
