"""
Statements run through the standard library's `sqlite3`, as SQLite reports them.

Method: `sqlite3` raises the audit event "sqlite3.connect/handle" for every new connection, however
early `connect` was bound and whatever the factory. The hook reads the connection's `sqlite3*`, the
first word after the object header (Modules/_sqlite/connection.h, 3.11 to 3.14), and registers
`sqlite3_trace_v2` on it, in the very library that `_sqlite3` is linked with. `install` proves on a
connection in memory that the word is that pointer before any store relies on it.

SQLite keeps one trace per connection, and `Connection.set_trace_callback` takes its place. So that
method is replaced, in the type's own dictionary because the type is immutable: the store's
callback is then called from ours, with the text that `sqlite3` would give it.

Covered: every statement of every connection made after `install`: the implicit BEGIN, the COMMIT
that `executescript` hides, savepoints, pragmas, DDL, reads. Inside a trigger "before" only.

Not covered: backups, blob writes, the checkpoint of a closing connection: SQLite has no event.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from harness.errors import ConfigurationError
from harness.observe.slot import SLOT, note_failure, report
from harness.observe.trampoline import exception_safe

_STATEMENT, _PROFILE = 0x01, 0x02  # SQLITE_TRACE_STMT and _PROFILE, sqlite3.h
_TRACE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_VERSIONS = ((3, 11), (3, 14))
_EVENT = "sqlite3.connect/handle"
_HEADER_BYTES = object.__basicsize__
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


class _State:
    """What `install` found out; `paths` maps a handle to the path of its main database."""

    library: Any = None
    trace: int = 0
    connection_type: Any = None
    unavailable: str | None = "harness.observe.install() was not called"
    installed: bool = False
    paths: dict[int, str] = {}  # noqa: RUF012 - one per process by intent
    store_callbacks: dict[int, Callable[[], Any]] = {}  # noqa: RUF012 - references, by handle


class _Unavailable(Exception):
    """Carries the plain reason why connections of `sqlite3` cannot be observed here."""


def unavailable() -> str | None:
    """Return why statements of the standard library's `sqlite3` are not observed, or None."""
    return _State.unavailable


def install() -> None:
    """
    Trace every `sqlite3` connection that this process makes from now on; idempotent.

    Where that is impossible `unavailable` gives the reason, and a connection that the store
    opens all the same is a failure: its statements would be boundaries that nobody crashed.
    """
    if _State.installed:
        return
    _State.installed = True
    try:
        _prepare()
    except _Unavailable as reason:
        _State.unavailable = str(reason)
        sys.addaudithook(_audit_unseen)
        return
    _State.unavailable = None
    _replace_set_trace_callback()
    sys.addaudithook(_audit)


def _prepare() -> None:
    """Load the library and prove the way to a connection's handle; raises _Unavailable."""
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython" or not _VERSIONS[0] <= version <= _VERSIONS[1]:
        raise _Unavailable(f"{sys.implementation.name} {version} is not CPython 3.11 to 3.14")
    try:
        import _sqlite3
    except ImportError as error:
        raise _Unavailable(f"this interpreter has no sqlite3: {error}") from error
    _State.connection_type = _sqlite3.Connection
    try:
        _State.library = _load(getattr(_sqlite3, "__file__", None))
        _State.trace = exception_safe(_TRACE(_on_trace))
    except (OSError, AttributeError, RuntimeError) as error:
        raise _Unavailable(f"SQLite's library cannot be traced: {error}") from error
    connection = _sqlite3.connect(":memory:")
    try:
        _prove(connection)
    finally:
        connection.close()


def _load(module_file: str | None) -> Any:
    """Return the C library behind `_sqlite3`; a symbol that it lacks raises AttributeError."""
    library = ctypes.CDLL(module_file)  # None: built into the interpreter itself
    pointer = ctypes.c_void_p
    library.sqlite3_trace_v2.argtypes = [pointer, ctypes.c_uint, pointer, pointer]
    library.sqlite3_sql.argtypes = [pointer]
    library.sqlite3_sql.restype = ctypes.c_char_p
    library.sqlite3_expanded_sql.argtypes = [pointer]
    library.sqlite3_expanded_sql.restype = pointer
    library.sqlite3_free.argtypes = [pointer]
    library.sqlite3_free.restype = None
    library.sqlite3_db_filename.argtypes = [pointer, ctypes.c_char_p]
    library.sqlite3_db_filename.restype = ctypes.c_char_p
    library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    library.sqlite3_vfs_find.restype = pointer
    return library


def _prove(connection: Any) -> None:
    """
    Check that the handle read from *connection* is a `sqlite3` of the library that was loaded.

    Its first member points to the default VFS (struct sqlite3 in sqliteInt.h). The word is read
    through /proc/self/mem, where a wrong address is an error and not a crash.
    """
    handle = _handle(connection) or 0
    expected = _State.library.sqlite3_vfs_find(None)
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            word = os.pread(descriptor, _POINTER_BYTES, handle)
        finally:
            os.close(descriptor)
    except (OSError, OverflowError) as error:
        raise _Unavailable(f"a connection's handle cannot be read: {error}") from error
    if int.from_bytes(word, sys.byteorder) != expected:
        raise _Unavailable("a connection's handle does not belong to the library that was loaded")


def _handle(connection: Any) -> int | None:
    """Return the `sqlite3*` of *connection*, None when it is closed."""
    return ctypes.c_void_p.from_address(id(connection) + _HEADER_BYTES).value


def _audit_unseen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect" and arguments[0] != ":memory:" and SLOT.sink is not None:
        error = ConfigurationError(
            f"the store opened {arguments[0]!r} with sqlite3, whose statements cannot be observed "
            f"here: {_State.unavailable}. Its boundaries would go uncrashed: run it on an "
            "interpreter that can, or open the database with apsw."
        )
        note_failure("sqlite3.connect", error)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != _EVENT:
        return
    try:
        connection = arguments[0]
        if not isinstance(connection, _State.connection_type):
            return
        handle = _handle(connection)
        if handle is None:
            return
        path = _State.library.sqlite3_db_filename(handle, b"main") or b""
        _State.paths[handle] = os.fsdecode(path)
        _State.store_callbacks.pop(handle, None)
        _register(handle)
    except Exception as error:
        note_failure("sqlite3 audit hook", error)


def _register(handle: int) -> None:
    result = _State.library.sqlite3_trace_v2(handle, _STATEMENT | _PROFILE, _State.trace, handle)
    if result != 0:
        raise RuntimeError(f"sqlite3_trace_v2 answered {result}")


def _on_trace(code: int, handle: int, statement: int, detail: int) -> int:
    """Report one event; touches only the statement, since the connection may be garbage."""
    try:
        if code != _STATEMENT:
            if SLOT.sink is not None:
                text = _State.library.sqlite3_sql(statement) or b""
                report("sql", "after", _State.paths.get(handle, ""), _decoded(text))
            return 0
        if SLOT.sink is not None:
            # In a trigger the text is SQLite's comment "-- ..." and not the statement's own.
            text = ctypes.string_at(detail)
            report("sql", "before", _State.paths.get(handle, ""), _decoded(text))
        if handle in _State.store_callbacks:
            _call_store(handle, statement, detail)
    except Exception as error:
        note_failure("sqlite3 trace", error)
    return 0


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _replace_set_trace_callback() -> None:
    """Let a store's own trace callback live beside ours, for every connection of the type."""
    real = _State.connection_type.set_trace_callback

    def set_trace_callback(self: Any, trace_callback: Any) -> None:
        real(self, trace_callback)
        try:
            handle = _handle(self)
            if handle is None:
                return
            _State.store_callbacks.pop(handle, None)
            if trace_callback is not None:
                _State.store_callbacks[handle] = _reference(trace_callback)
            _register(handle)
        except Exception as error:
            note_failure("sqlite3 set_trace_callback", error)

    set_trace_callback.__doc__ = real.__doc__
    # A mappingproxy refers to one thing, the dictionary of the type.
    (attributes,) = gc.get_referents(_State.connection_type.__dict__)
    attributes["set_trace_callback"] = set_trace_callback
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(_State.connection_type))


def _reference(callback: Any) -> Callable[[], Any]:
    """Refer to *callback* weakly where it can be: the connection itself keeps it alive."""
    try:
        return weakref.ref(callback)
    except TypeError:
        return lambda: callback


def _call_store(handle: int, statement: int, detail: int) -> None:
    """Call the store's callback with the expanded text; what it raises is dropped, as there."""
    callback = _State.store_callbacks[handle]()
    if callback is None:
        return
    expanded = _State.library.sqlite3_expanded_sql(statement)
    try:
        text = ctypes.string_at(expanded or detail)
    finally:
        _State.library.sqlite3_free(expanded)
    try:
        callback(_decoded(text))
    except Exception:
        return
