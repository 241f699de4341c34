"""What opening raises keeps its facts wherever it is carried."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from store.run_store import errors
from store.run_store.errors import RunStoreError

PATH = Path("/root")
EXAMPLES: tuple[RunStoreError, ...] = (
    errors.UnsafeLayout(PATH, "must be a directory."),
    errors.NetworkFilesystem(PATH, "NFS"),
    errors.InitLockBusy(PATH, 5.0),
    errors.InitLockReplaced(PATH),
    errors.ProbeFailed("syncs", PATH, "reason."),
    errors.InitializationFailed("create_schema", PATH, "reason"),
    errors.NotADatabase(PATH),
    errors.UnknownVersion(PATH, found=2, expected=1),
    errors.UnversionedDatabase(PATH, ("theirs",)),
    errors.AlteredSchema(PATH, missing=("a",), unexpected=("b",), changed=("c",)),
)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: RunStoreError) -> None:
    """Type, message and every attribute come back, and the message names the path."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert "'/root'" in str(error)
    assert vars(error)


def test_every_error_of_the_module_has_an_example() -> None:
    """A new error cannot be added without being tested; the two bases are tested by the others."""
    bases = {"RunStoreError", "IncompatibleDatabase"}
    assert {type(error).__name__ for error in EXAMPLES} | bases == set(errors.__all__)
