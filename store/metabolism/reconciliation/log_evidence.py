"""
What can be seen of a launch log from outside, without reading or changing it.

Method: one ``stat`` that follows symbolic links. "Nothing is there" is said only where the system
said so; a path that the system refuses to look at proves nothing about the file.

Covered: files, missing files, other things in their place, paths that cannot be looked at.
Not covered: what the log says; whether its clock is this host's.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from store.metabolism.launch_log import log_file
from store.metabolism.reconciliation.moments import NS_MAX

__all__ = ["LogEvidence", "LogSeen", "look_at_log"]


class LogSeen(StrEnum):
    """
    What stands where a launch log was recorded.
    """

    FILE = "file"
    NOTHING = "nothing"
    NOT_A_FILE = "not_a_file"
    UNREADABLE = "unreadable"


class LogEvidence(NamedTuple):
    """
    What one look at a launch log gave.

    Attributes:
        modified_at_ns: When it was last written; None unless it is a file.
        detail: The same in words; empty for a file.
    """

    seen: LogSeen
    modified_at_ns: int | None
    detail: str


_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def look_at_log(folder: Path, log_path: str) -> LogEvidence:
    """
    Return what stands at *log_path*, which is relative to *folder* or absolute.

    Raises nothing for whatever the path is, since a database may say anything.
    """
    path = log_file(folder, log_path)
    try:
        found = path.stat()
    except FileNotFoundError:
        return LogEvidence(LogSeen.NOTHING, None, _nothing(path))
    except OSError as error:
        return _unreadable(f"the system says: {os.strerror(error.errno or 0)}")
    except ValueError:
        return _unreadable("no file can have that name")
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_it, words in _KINDS if is_it(found.st_mode)), "something else")
        return LogEvidence(LogSeen.NOT_A_FILE, None, f"{kind} is there, which is no log")
    return LogEvidence(LogSeen.FILE, max(-NS_MAX, min(found.st_mtime_ns, NS_MAX)), "")


def _nothing(path: Path) -> str:
    if path.is_symlink():
        return "a symbolic link is there that leads nowhere"
    return "nothing is there"


def _unreadable(reason: str) -> LogEvidence:
    return LogEvidence(LogSeen.UNREADABLE, None, f"it could not be looked at; {reason}")
