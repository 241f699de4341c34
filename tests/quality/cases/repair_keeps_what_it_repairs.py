"""
Guarantee: a crash inside the repair of a torn tail loses no record that was whole before.

Bug: B23. The repair reads all, opens with truncation, and writes the valid part back. `Broken`
makes the repair its first step, where every boundary of the execution is crashed;
`BrokenInRecovery` does the same in `recover`, where only a crash of the recovery itself can show
it.
Report: weby-homelab/power-framework#388.
"""

import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, UNCHANGED, Campaign, Evidence, Run

OLD = ["old-1", "old-2", "old-3"]


def cut_by_rewriting(ledger: Path, data: bytes) -> None:
    """Empty the ledger and write its valid part back, in two pieces."""
    with open(ledger, "wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        file.write(data[len(data) // 2 :])
        os.fsync(file.fileno())


def cut_in_place(ledger: Path, data: bytes) -> None:
    """Shorten the ledger to its valid part."""
    with open(ledger, "r+b") as file:
        file.truncate(len(data))
        os.fsync(file.fileno())


def append(ledger: Path, record: str) -> None:
    """Append a record in two writes, so that a death between them tears it."""
    with open(ledger, "ab", buffering=0) as file:
        file.write(record.encode())
        file.write(b"\n")
        os.fsync(file.fileno())


class _Ledger(Campaign):
    is_rewritten: ClassVar[bool]
    torn: ClassVar[str] = "torn-rec"

    def repair(self, root: Path) -> None:
        data = (root / "ledger").read_bytes()
        valid = data[: data.rfind(b"\n") + 1]
        if valid != data:
            (cut_by_rewriting if self.is_rewritten else cut_in_place)(root / "ledger", valid)

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "ledger").write_text("".join(f"{x}\n" for x in OLD) + self.torn)
        for record in OLD:
            run.promise("kept", record=record)
        return None

    def execute(self, root: Path, run: Run) -> None:
        run.step("open", partial(self.repair, root), then=UNCHANGED)
        run.step("append", partial(append, root / "ledger", "new"), then=[*OLD, "new"])

    def recover(self, root: Path, run: Run) -> None:
        self.repair(root)

    def observe(self, root: Path) -> JSON:
        lines = (root / "ledger").read_text().split("\n")
        return [*lines[:-1]]  # behind the last newline: nothing, or a torn record

    def promised_kept(self, root: Path, evidence: Evidence, *, record: str) -> bool:
        return record in evidence.observed


class Broken(_Ledger):
    """Rewrites the ledger that it repairs, when it opens."""

    is_rewritten = True


class BrokenInRecovery(_Ledger):
    """Rewrites it after a crash only: the ledger is whole when the workload starts."""

    is_rewritten = True
    torn = ""

    def spoil(self, root: Path) -> None:
        os.truncate(root / "ledger", 3)  # what a death inside the repair leaves


class Fixed(_Ledger):
    """Cuts the tail in place."""

    is_rewritten = False
