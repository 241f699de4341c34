"""What the recorder's tests share: a forked child that is recorded, its log, and both trees."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import workspace
from harness.completeness import Follower
from harness.oplog import Kind, Op, Oplog
from harness.recorder import Options, Session, missing, recording

QUIET = Options(stacks=False, seed=None, clock_start_ns=None)
"""Nothing but the calls."""

_PROBLEM = missing()
needs_recorder = pytest.mark.skipif(
    _PROBLEM is not None and not os.environ.get("CI"),
    reason=f"NOT TESTED, the recorder: {_PROBLEM}",
)
"""A loud skip where the recorder cannot work, and a failure in continuous integration."""


@dataclass(frozen=True)
class Recorded:
    """One recorded child: how it ended, what the log says, and whether that is everything."""

    status: int
    log_path: Path
    ops: list[Op]
    stacks: dict[int, str]
    uncertain: Op | None
    problems: list[str]
    printed: str

    @property
    def kinds(self) -> Counter[str]:
        """How many ops of each kind there are."""
        return Counter(op.kind.name for op in self.ops if op.kind >= Kind.OPEN)

    def of(self, kind: Kind) -> list[Op]:
        """Return the ops of one kind."""
        return [op for op in self.ops if op.kind is kind]


def record(
    folder: Path,
    body: Callable[[Path, Session], object],
    options: Options = QUIET,
    *,
    prepare: Callable[[Path], object] | None = None,
    volatile: tuple[str, ...] = (),
    status: int = 0,
) -> Recorded:
    """Record *body* over a root in *folder*, in a child that must end with *status*."""
    root, log_path, printed = folder / "root", folder / "log", folder / "printed"
    root.mkdir()
    if prepare is not None:
        prepare(root)
    workspace.copy_tree(root, folder / "derived")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _be_child(root, log_path, printed, body, options)
    _, ended = os.waitpid(pid, 0)
    text = printed.read_text(errors="replace")
    assert os.waitstatus_to_exitcode(ended) == status, text
    with Oplog.read(log_path) as log:
        ops = list(log)
        stacks, uncertain = log.stacks, log.uncertain
    with Oplog.read(log_path) as log:
        follower = Follower(log, folder / "derived", folder / "side", volatile)
        problems = follower.problems(root)
    return Recorded(ended, log_path, ops, stacks, uncertain, problems, text)


def _be_child(
    root: Path,
    log_path: Path,
    printed: Path,
    body: Callable[[Path, Session], object],
    options: Options,
) -> None:
    status = 70
    try:
        signal.alarm(60)
        descriptor = os.open(printed, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        os.chdir(root)
        with recording(root, log_path, options) as session:
            body(root, session)
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)
