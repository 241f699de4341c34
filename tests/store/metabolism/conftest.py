"""The command line in this process, and a database in a folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from metabolism_held_world import Answer, HeldWorld, Run

from store.metabolism.__main__ import main


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("COLUMNS", raising=False)

    def command(*arguments: object) -> Answer:
        with monkeypatch.context() as patched:
            for name in ("stdout", "stderr"):
                number = getattr(sys, f"__{name}__").fileno()
                stream = open(os.dup(number), "w", encoding="utf-8")  # noqa: SIM115
                patched.setattr(sys, name, stream)
            code = main([str(one) for one in arguments])
            sys.stdout.close()
            sys.stderr.close()
        out, err = capfdbinary.readouterr()
        return Answer(code, out.decode(), err.decode())

    return command


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HeldWorld]:
    made = HeldWorld(tmp_path / "living")
    yield made
    made.connection.close()
