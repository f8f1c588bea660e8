"""The command line of lastword."""

from lastword.cli.commands import COMMANDS, PANELS, app, main

__all__ = ["COMMANDS", "PANELS", "app", "main"]
