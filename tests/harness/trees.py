"""A tree with everything that a store's root may hold, and how a folder is refused."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import WorkspaceError
from harness.workdir import Workdir

MIB = 1 << 20


def make_tree(root: Path) -> None:
    """Make a tree with everything that a store's root may hold."""
    root.mkdir(mode=0o750)
    (root / "empty").touch()
    (root / "äöü and spaces.txt").write_text("text", encoding="utf-8")
    Path(os.fsdecode(os.fsencode(root) + b"/not-\xff-utf8")).write_bytes(b"\0\xff")
    (root / "inner" / "deeper").mkdir(parents=True)
    (root / "inner" / "secret").write_text("secret")
    (root / "inner" / "secret").chmod(0o400)
    (root / "inner" / "program").write_text("#!/bin/sh\n")
    (root / "inner" / "program").chmod(0o4755)
    (root / "inner" / "deeper" / "other").hardlink_to(root / "inner" / "secret")
    (root / "inner" / "absolute").symlink_to("/etc/passwd")
    (root / "inner" / "to-directory").symlink_to("deeper")
    (root / "broken").symlink_to("nowhere")
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "queue")
    (root / "queue").chmod(0o620)
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o1777)
    (root / "locked").mkdir()
    (root / "locked" / "in-locked").write_text("x")
    (root / "locked").chmod(0o500)
    (root / "big").write_bytes(os.urandom(3 * MIB + 17))
    for number, path in enumerate([*sorted(root.rglob("*")), root]):
        moment = 1_000_000_000_123_456_789 + number * 1_000_000_007
        os.utime(path, ns=(moment, moment), follow_symlinks=False)


def refusal(explicit: Path) -> str:
    """Return the message with which a work folder is refused."""
    try:
        Workdir.choose(explicit, 1)
    except WorkspaceError as error:
        return str(error)
    return ""
