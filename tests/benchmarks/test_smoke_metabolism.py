"""The metabolism benchmark runs in a tiny size and prints counts that can be checked."""

from __future__ import annotations

import re

import pytest
from test_smoke import printed_by

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def printed() -> str:
    """What the benchmark prints."""
    return printed_by("bench_metabolism")


def test_every_queue_completes_every_job(printed: str) -> None:
    """All seven do the same jobs, and their own databases say so."""
    counts = re.findall(r"^completed (\d+) of (\d+)$", printed, re.MULTILINE)
    assert counts[0] == ("4200", "4200")
    assert set(counts) == {("4200", "4200")}
    for name in ("metabolism", "bare apsw", "litequeue", "huey", "persist-queue"):
        assert re.search(rf"^  {name} +(?: +\d+\.\d){{6}}$", printed, re.MULTILINE), name


def test_every_queue_has_the_same_durability(printed: str) -> None:
    """WAL, NORMAL and the size of a checkpoint are read back from seven connections."""
    settings = "journal_mode=wal synchronous=1 wal_autocheckpoint=1000 page_size=4096 "
    assert printed.count(settings) == 7


def test_reconciliation_finds_what_was_broken(printed: str) -> None:
    """Forty findings among few, one for each running job among all, the worst always the same."""
    found = re.findall(r"^    (\w+) +(\d+) looked at, (\d+) findings, worst (\w+):", printed, re.M)
    looked_at = [(what, int(active), int(count)) for what, active, count, _ in found]
    assert looked_at == [
        ("reconcile", 100, 40),
        ("survey", 100, 100),
        ("reconcile", 100, 100),
        ("reconcile", 200, 40),
        ("survey", 200, 200),
        ("reconcile", 200, 200),
        ("survey", 1000, 1000),
    ]
    assert {worst for *_, worst in found[:6]} == {"3dd4d1238efb4757"}
