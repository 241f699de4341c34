"""What is left of the stacks of a dying process: the frames of the store and its campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness.stacks import without_own_frames

OWN = str(Path(str(harness.__file__)).parent)
STACK = f"""said before
Fatal Python error: {{error}}

Thread 0x00007f8a (most recent call first):
  File "/store/log.py", line 3 in wait

Current thread 0x00007f8b (most recent call first):
  File "{OWN}/observe/python_open.py", line 9 in write
  File "/store/log.py", line 7 in append
  File "{OWN}/stage.py", line 5 in _child
  File "<frozen runpy>", line 88 in _run_code

Extension modules: apsw (total: 1)
"""
KEPT = """

Thread 0x00007f8a (most recent call first):
  File "/store/log.py", line 3 in wait

Current thread 0x00007f8b (most recent call first):
  File "/store/log.py", line 7 in append"""


@pytest.mark.parametrize(
    ("error", "head"),
    [("Segmentation fault", "Fatal Python error: Segmentation fault"), ("Aborted", "")],
)
def test_frames_of_the_harness_go_and_what_was_printed_stays(error: str, head: str) -> None:
    """Every thread keeps its own frames; that the harness sent SIGABRT is no news."""
    shown = without_own_frames(STACK.format(error=error))
    assert shown == "said before\n" + (head + KEPT).lstrip("\n")


def test_text_without_a_stack_stays_as_it_is() -> None:
    """What a store prints is not touched, also where it looks like a frame."""
    text = f'  File "{OWN}/x.py", line 1\nExtension modules: none\n'
    assert without_own_frames(text) == text


def test_stacks_of_the_harness_alone_are_shown() -> None:
    """A child that hangs in the harness itself is not without a place."""
    own = f'Current thread 0x1 (most recent call first):\n  File "{OWN}/tape.py", line 1 in mark'
    assert without_own_frames(f"Fatal Python error: Aborted\n\n{own}\n") == own
