"""Four tiny models that come with the package, each a folder in its authors' checkpoint format.

`lastword.load("tiny-llada-base")`. `training/` trains them; each folder's README.md is its model card.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
EMBEDDED = ("tiny-dream-base", "tiny-dream-instruct", "tiny-llada-base", "tiny-llada-instruct")
