"""The observer slot: silent in production, exact when a test attached something."""

from __future__ import annotations

import pytest

from store import crash_points


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(crash_points, "_observer", lambda *call: calls.append(call))
    return calls


def test_nothing_is_attached_unless_a_test_does_it() -> None:
    """A fresh process has an empty slot, and an announcement then does nothing."""
    assert crash_points._observer is None
    crash_points.reached("point", "before", "test.nothing")


def test_no_public_name_fills_the_slot() -> None:
    """The module offers announcing and its types, and no way to attach."""
    assert crash_points.__all__ == ["Kind", "Observer", "Phase", "reached", "surrounding"]


def test_an_announcement_reaches_the_observer_unchanged(seen: list[tuple[str, ...]]) -> None:
    """The observer gets kind, phase and every name, by position and in order."""
    crash_points.reached("rename", "after", "/a", "/b")
    assert seen == [("rename", "after", "/a", "/b")]


def test_surrounding_announces_both_ends_of_a_block(seen: list[tuple[str, ...]]) -> None:
    """A block that succeeds has a point before it and a point after it."""
    with crash_points.surrounding("test.act"):
        seen.append(("act",))
    assert seen == [("point", "before", "test.act"), ("act",), ("point", "after", "test.act")]


def test_surrounding_announces_no_end_of_a_failed_block(seen: list[tuple[str, ...]]) -> None:
    """A block that raises has no point after it, and its error passes through."""
    with pytest.raises(KeyError), crash_points.surrounding("test.act"):
        raise KeyError("act")
    assert seen == [("point", "before", "test.act")]


def test_an_observer_that_raises_stops_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is announced as about to happen does not happen when the observer raises."""

    def refuse(kind: str, phase: str, /, *names: str) -> None:
        raise RuntimeError(phase)

    monkeypatch.setattr(crash_points, "_observer", refuse)
    acted = []
    with pytest.raises(RuntimeError, match="before"), crash_points.surrounding("test.act"):
        acted.append(1)
    assert acted == []
