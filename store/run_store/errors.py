"""
What opening a run store can raise; the writer's refusals share the same root.
"""

from __future__ import annotations

from pathlib import Path

from store.errors import StoreError

__all__ = [
    "AlteredSchema",
    "IncompatibleDatabase",
    "InitLockBusy",
    "InitLockReplaced",
    "InitializationFailed",
    "NetworkFilesystem",
    "NotADatabase",
    "ProbeFailed",
    "RunStoreError",
    "UnknownVersion",
    "UnsafeLayout",
    "UnversionedDatabase",
]


class RunStoreError(StoreError):
    """
    Root of everything that the run store raises on purpose.
    """


class UnsafeLayout(RunStoreError):
    """
    The root, or a file in it, is not what a store may be opened on. Nothing was changed.

    Attributes:
        path: The offending path.
        problem: What is wrong with it.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"path={str(path)!r} {problem}")
        self.path = path
        self.problem = problem


class NetworkFilesystem(RunStoreError):
    """
    The root lies on a network filesystem, where shared memory does not span hosts.

    Attributes:
        path: The root.
        filesystem: The family's name, as in ``NFS``.
    """

    def __init__(self, path: Path, filesystem: str) -> None:
        super().__init__(
            f"root={str(path)!r} lies on {filesystem}, a network filesystem; "
            "a run store needs a local one. Move the root to a local disk."
        )
        self.path = path
        self.filesystem = filesystem


class InitLockBusy(RunStoreError):
    """
    Another initialiser held the init lock for the whole time that this one may wait.

    Attributes:
        path: The lock file.
        waited_s: How long this one waited, in seconds.
    """

    def __init__(self, path: Path, waited_s: float) -> None:
        super().__init__(
            f"lock={str(path)!r} was held by another initialiser for {waited_s} s; "
            "wait for it to end, then open again. Do not remove the file."
        )
        self.path = path
        self.waited_s = waited_s


class InitLockReplaced(RunStoreError):
    """
    The lock file's path no longer names the file that was locked.

    Attributes:
        path: The lock file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"lock={str(path)!r} was removed or replaced while it was being locked; "
            "it must stay in place for ever. Open again."
        )
        self.path = path


class ProbeFailed(RunStoreError):
    """
    The root's filesystem lacks something that a run store needs; the database was not opened.

    Attributes:
        probe: Which probe, as in ``record_locks``.
        root: The root that was probed.
        reason: What happened instead of what was expected.
    """

    def __init__(self, probe: str, root: Path, reason: str) -> None:
        super().__init__(
            f"probe={probe!r} failed in root={str(root)!r}: {reason} "
            "There is no weaker mode; use another filesystem."
        )
        self.probe = probe
        self.root = root
        self.reason = reason


class InitializationFailed(RunStoreError):
    """
    A lock, sync or SQLite call of the initialisation failed; no handle was returned.

    The cause is chained. The root may hold an empty or a complete database, never a part of a
    schema; opening again checks it.

    Attributes:
        stage: What was being done, as in ``create_schema``.
        path: The file or folder it was done to.
        reason: The cause, in words.
    """

    def __init__(self, stage: str, path: Path, reason: str) -> None:
        super().__init__(f"stage={stage!r} failed on path={str(path)!r}: {reason}")
        self.stage = stage
        self.path = path
        self.reason = reason


class IncompatibleDatabase(RunStoreError):
    """
    The database is not one that this version may touch; it was left as it was.

    Attributes:
        path: The database.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"database={str(path)!r} {problem}")
        self.path = path


class NotADatabase(IncompatibleDatabase):
    """
    The file has content, but none that SQLite can read as a database.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "is not an SQLite database; choose another root, or restore it from a backup."
        )


class UnknownVersion(IncompatibleDatabase):
    """
    The database carries a layout version that this library does not know.

    Attributes:
        found: Its ``user_version``.
        expected: The version that this library reads and writes.
    """

    def __init__(self, path: Path, *, found: int, expected: int) -> None:
        super().__init__(
            path,
            f"has user_version={found!r}, expected {expected}; "
            "open it with the library that wrote it. Nothing is migrated implicitly.",
        )
        self.found = found
        self.expected = expected


class UnversionedDatabase(IncompatibleDatabase):
    """
    The database carries no layout version but has objects of somebody else.

    Attributes:
        objects: Names of the objects found, sorted.
    """

    def __init__(self, path: Path, objects: tuple[str, ...]) -> None:
        super().__init__(
            path,
            f"has user_version=0 and objects={list(objects)!r}, expected an empty database; "
            "it belongs to something else. Choose another root.",
        )
        self.objects = objects


class AlteredSchema(IncompatibleDatabase):
    """
    The database says version 1, but its schema is not the embedded one.

    Attributes:
        missing: Objects of the embedded schema that are absent, sorted.
        unexpected: Objects that the embedded schema does not have, sorted.
        changed: Objects whose definition differs, sorted.
    """

    def __init__(
        self,
        path: Path,
        *,
        missing: tuple[str, ...],
        unexpected: tuple[str, ...],
        changed: tuple[str, ...],
    ) -> None:
        super().__init__(
            path,
            f"has another schema than its version: missing={list(missing)!r}, "
            f"unexpected={list(unexpected)!r}, changed={list(changed)!r}, expected none; "
            "restore it from a backup.",
        )
        self.missing = missing
        self.unexpected = unexpected
        self.changed = changed
