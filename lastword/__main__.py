"""The entry point of `python -m lastword`, which runs the command line."""

from lastword.cli import main

main()
