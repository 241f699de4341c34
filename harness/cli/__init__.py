"""The command ``crashconform``: list, trace, run and replay campaigns."""

from harness.cli.entry import main

__all__ = ["main"]
