"""Tests that docs/use/extend.md shows the present code of the files that it describes."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ("lastword/policies/unmask/local_leap.py", "tests/policies/unmask/test_local_leap.py")


def test_the_page_shows_the_code_of_the_files():
    page = (ROOT / "docs" / "use" / "extend.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name in FILES:
        text = (ROOT / name).read_text()
        assert any(block in text for block in blocks), f"{name} differs from docs/use/extend.md"
