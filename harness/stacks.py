"""What children print: the stacks of a dying one without the harness's own, whole characters."""

from __future__ import annotations

import os
import re
from pathlib import Path

FATAL = "Fatal Python error: "
"""With which faulthandler begins."""

_ABORTED = f"{FATAL}Aborted"
_EXTENSIONS = "Extension modules: "
_FOLDER = re.escape(str(Path(__file__).parent) + os.sep)
_FRAME = re.compile(r'\s*File "')
_OWN_FRAME = re.compile(rf'\s*File "(?:{_FOLDER}|<frozen runpy>)')


def without_own_frames(text: str) -> str:
    """
    Return what a process printed, the stacks at its end without the frames of the harness.

    Also goes the list of extension modules, and that SIGABRT came, which the harness sent. Where
    nothing but the harness is on the stacks, they stay as they are.
    """
    start = text.rfind(FATAL)
    if start < 0:
        return text
    lines = text[start:].splitlines()
    kept = [line for line in lines if not _OWN_FRAME.match(line)]
    if not any(_FRAME.match(line) for line in kept):
        kept = lines
    kept = [line for line in kept if line != _ABORTED and not line.startswith(_EXTENSIONS)]
    return text[:start] + "\n".join(kept).strip("\n")


def from_character(data: bytes) -> bytes:
    """Return *data* without the rest of a UTF-8 character at its start."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
