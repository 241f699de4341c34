"""The command ``crashconform``: list, trace, run and replay campaigns."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import would only make the command start later
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit code, as :func:`harness.cli.entry.main` says.

    Everything is imported in here, so that an interrupt while the command starts is one, too.
    """
    try:
        from harness.cli.entry import main as enter

        return enter(arguments)
    except KeyboardInterrupt:
        import sys

        print("crashconform: interrupted", file=sys.stderr)
        return 3
