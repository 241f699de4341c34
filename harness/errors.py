"""Every error that the harness raises, and nothing else."""

from __future__ import annotations


class HarnessError(Exception):
    """
    Root of the errors that a user of the harness can meet.

    The message names the thing, says what was expected and what to do.
    """


class ConfigurationError(HarnessError):
    """The campaign, the configuration or the command line is wrong; nothing was explored."""


class WorkspaceError(HarnessError):
    """The work folder cannot be used: missing, unwritable, too small or full."""


class ZygoteDied(HarnessError):
    """A worker process of the harness ended by itself; what it printed is in the message."""


class CommandFailed(HarnessError):
    """A command that an installed store brings went wrong; its traceback is in the message."""


class OplogError(HarnessError):
    """A file is no whole oplog: damaged, cut, or of another version."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}; record again.")
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[OplogError], tuple[str, int, str]]:
        return type(self), (self.path, self.offset, self.reason)


class RecorderError(HarnessError):
    """The recorder cannot record here, or recorded less than everything."""


class Hangup(BaseException):
    """The process that asked for the work is gone; end every child and leave."""
