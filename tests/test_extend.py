"""docs/use/extend.md shows the files it describes as they are."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = ("lastword/policies/unmask/local_leap.py", "tests/policies/unmask/test_local_leap.py")


def test_the_page_shows_what_the_files_hold():
    page = (ROOT / "docs" / "use" / "extend.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name in SHOWN:
        text = (ROOT / name).read_text()
        assert any(block in text for block in blocks), f"{name} differs from docs/use/extend.md"
