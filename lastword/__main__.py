"""`python -m lastword`: the command line, where its script is not on the path."""

from lastword.cli import main

main()
