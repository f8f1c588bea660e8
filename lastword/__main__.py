"""`python -m lastword`."""

from lastword.cli import main

main()
