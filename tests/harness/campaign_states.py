"""
Compares states derived from a recording with real deaths, at every boundary of campaigns.

Run as ``python -m tests.harness.campaign_states TARGET FOLDER``, since it becomes a zygote. Prints
one line a campaign: its name, its boundaries, how many were equal, how many states were distinct.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from harness import observe, workspace
from harness.client import ZygoteClient
from harness.crash import execution
from harness.discovery import Found, load
from harness.materialise import Materialiser
from harness.oplog import Kind, Mark, Oplog
from harness.process import become_zygote
from harness.recorder import Options, Session, recording, seal
from harness.recording import first_run
from harness.stage import PhaseEnd, Stage
from harness.tape import Tape

PROJECT = Path(__file__).parents[2]


def marking(session: Session) -> None:
    """Have each boundary marked in the log, before it can be the one to die at."""
    write = Tape._write

    def marked(self: Tape, line: bytes) -> None:
        session.mark(Mark.BOUNDARY, self.count + 1, line.decode())
        write(self, line)

    Tape._write = marked  # type: ignore[method-assign]


def run(stage: Stage, log_path: Path, options: Options, stop: int = 0) -> PhaseEnd:
    """Execute on a fresh fixture, recorded, and die at *stop*."""
    stage.restore_fixture()
    body: Callable[[], object] = execution(stage)

    def recorded() -> None:
        with recording(stage.root, log_path, options) as session:
            marking(session)
            body()

    return stage.run(recorded, is_traced=True, stop=stop)


def compare(found: Found, folder: Path) -> str:
    """Return what came of one campaign."""
    for name in ("root", "side"):
        (folder / name).mkdir(parents=True)
    stage = Stage(load(found), folder / "root", folder / "side", 60.0)
    volatile = stage.campaign.volatile
    first_run(stage)
    end = run(stage, folder / "log", Options())
    assert end.has_returned, end.failure("execute")
    workspace.copy_tree(stage.fixture, folder / "derived")
    follow = Materialiser(folder / "derived", folder / "nameless")
    equal, digests = 0, set()
    with Oplog.read(folder / "log") as log:
        for op in log:
            follow.apply(op)
            if op.kind is not Kind.MARKER or op.mode != Mark.BOUNDARY:
                continue
            log_path = folder / f"log{op.offset}"
            died = run(stage, log_path, Options(calls=False), op.offset)
            seal(log_path)
            assert died.died_at == op.offset
            digests.add(workspace.tree_digest(folder / "derived", volatile))
            equal += workspace.tree_difference(folder / "derived", stage.root, volatile) == []
    return f"{found.name} {end.count} {equal} {len(digests)}"


def main(target: str, folder: Path) -> None:
    """Compare every campaign that *target* names."""
    with ZygoteClient([PROJECT]) as client:
        campaigns = list(client.list([target], PROJECT))
    become_zygote()
    observe.install()
    for number, found in enumerate(campaigns):
        print(compare(found, folder / str(number)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
