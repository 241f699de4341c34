"""Statements of apsw and sqlite3 reach the sink, before and after, whatever the store does."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from observing import REPOSITORY, Observed, both, serving, statements

APSW = "import apsw\nc = apsw.Connection('a.db')\n"
SQLITE3 = "import sqlite3\nc = sqlite3.connect('a.db')\n"
AUTOCOMMIT = "import sqlite3\nc = sqlite3.connect('a.db', isolation_level=None)\n"


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with the hooks installed, which forks a child for each snippet."""
    with serving() as process:
        yield process


@pytest.fixture
def store(server: subprocess.Popen[str], tmp_path: Path) -> Observed:
    """Runs snippets in an empty folder of their own."""
    return Observed(server, tmp_path.resolve())


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_every_kind_of_statement_is_reported_on_both_sides(store: Observed, opening: str) -> None:
    """DDL, transactions, savepoints, pragmas and reads are reported unexpanded, in order."""
    texts = [
        "create table t(a)",
        "begin immediate",
        "insert into t values(?)",
        "savepoint s",
        "release s",
        "commit",
        "begin",
        "rollback",
        "pragma user_version",
        "select a from t",
    ]
    source = (
        opening
        + f"""
for text in {texts!r}:
    c.execute(text, (7,) if "?" in text else ()).fetchall()
"""
    )
    assert store.events(source) == statements("a.db", *texts)


def test_apsw_statements_of_one_call_are_reported_each(store: Observed) -> None:
    """Several statements in one execute are several pairs, with SQLite's own text of each."""
    source = APSW + "c.execute('create table t(a); insert into t values(1)')"
    assert store.events(source) == statements(
        "a.db", "create table t(a);", "insert into t values(1)"
    )


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_executemany_reports_each_row(store: Observed, opening: str) -> None:
    """executemany is one pair for each row."""
    source = (
        opening
        + """
c.execute('create table t(a)')
c.executemany('insert into t values(?)', [(1,), (2,)])
"""
    )
    insert = "insert into t values(?)"
    assert store.events(source) == statements("a.db", "create table t(a)", insert, insert)


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_failed_statement_is_reported_when_it_ran(store: Observed, opening: str) -> None:
    """A statement that breaks a constraint has both sides; one that does not compile has none."""
    source = (
        opening
        + """
c.execute('create table t(a unique)')
result = []
for text in ('insert into t values(1), (1)', 'insert into nowhere values(1)'):
    try:
        c.execute(text)
    except Exception as error:
        result.append(type(error).__name__)
"""
    )
    outcome = store.run(source)
    assert outcome.events == statements(
        "a.db", "create table t(a unique)", "insert into t values(1), (1)"
    )
    assert len(outcome.result) == 2


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_trigger_statements_are_reported_before_only(store: Observed, opening: str) -> None:
    """Inside a trigger SQLite's comments are reported, without an after."""
    trigger = "create trigger w after insert on t begin delete from t where a = 0; end"
    source = (
        opening
        + f"""
c.execute('create table t(a)')
c.execute({trigger!r})
events.clear()
c.execute('insert into t values(1)')
"""
    )
    assert store.events(source) == [
        ("sql", "before", "a.db", "insert into t values(1)"),
        ("sql", "before", "a.db", "-- TRIGGER w"),
        ("sql", "before", "a.db", "-- delete from t where a = 0"),
        ("sql", "after", "a.db", "insert into t values(1)"),
    ]


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_leading_comment_keeps_its_text(store: Observed, opening: str) -> None:
    """A statement that starts with a comment is reported whole on both sides."""
    text = "-- why\ncreate table t(a)"
    assert store.events(opening + f"c.execute({text!r})") == statements("a.db", text)


def test_apsw_later_connections_subclasses_and_memory_are_reported(store: Observed) -> None:
    """Each connection reports its own database; one in memory reports an empty path."""
    source = (
        APSW
        + """
class Mine(apsw.Connection):
    pass
d = Mine('b.db')
m = apsw.Connection(':memory:')
for n, connection in enumerate((c, d, m, c)):
    connection.execute(f'pragma user_version = {n}')
"""
    )
    expected = []
    for n, path in enumerate(["a.db", "b.db", "", "a.db"]):
        expected += statements(path, f"pragma user_version = {n}")
    assert store.events(source) == expected


def test_apsw_traces_of_the_store_live_beside_ours(store: Observed) -> None:
    """A store that sets its own trace and exec trace keeps them, and is observed."""
    source = (
        APSW
        + """
result = []
c.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: result.append(event['sql']))
c.exec_trace = lambda cursor, sql, bindings: True
c.execute('create table t(a)')
"""
    )
    outcome = store.run(source)
    assert outcome.events == statements("a.db", "create table t(a)")
    assert outcome.result == ["create table t(a)"]


def test_sqlite3_implicit_begin_and_commit_are_reported(store: Observed) -> None:
    """The BEGIN that sqlite3 adds before an insert is a statement like any other."""
    source = (
        SQLITE3
        + """
c.execute('create table t(a)')
c.execute('insert into t values(?)', (1,))
c.commit()
"""
    )
    texts = ["create table t(a)", "BEGIN ", "insert into t values(?)", "COMMIT"]
    assert store.events(source) == statements("a.db", *texts)


def test_executescript_commit_is_reported(store: Observed) -> None:
    """The COMMIT that executescript hides stands between the debit and the credit."""
    source = (
        SQLITE3
        + """
c.execute('create table entry(side)')
events.clear()
c.execute("insert into entry values('debit')")
c.executescript("insert into entry values('credit');")
c.commit()
"""
    )
    texts = [
        "BEGIN ",
        "insert into entry values('debit')",
        "COMMIT",
        "insert into entry values('credit');",
    ]
    assert store.events(source) == statements("a.db", *texts)


def test_sqlite3_is_reached_however_it_is_opened(store: Observed) -> None:
    """connect bound before install, factories, subclasses and Connection itself are observed."""
    source = """
import sqlite3
class Mine(sqlite3.Connection):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.execute('pragma user_version')
early_connect('a.db').execute('select 1').fetchall()
early_connect('b.db', factory=Mine)
sqlite3.Connection('c.db').execute('select 3').fetchall()
"""
    expected = statements("a.db", "select 1")
    expected += statements("b.db", "pragma user_version")
    expected += statements("c.db", "select 3")
    assert [e for e in store.events(source) if e[1] == "before"] == expected[::2]


def test_sqlite3_many_connections_and_closed_ones(store: Observed) -> None:
    """A closed connection's address may serve the next one, which reports its own path."""
    source = """
import sqlite3
for n in range(40):
    c = sqlite3.connect(f'{n}.db')
    c.execute('pragma user_version = 1')
    c.close()
"""
    expected = [e for n in range(40) for e in statements(f"{n}.db", "pragma user_version = 1")]
    assert store.events(source) == expected


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_connection_opened_while_off_is_observed_once_on(store: Observed, opening: str) -> None:
    """Every connection carries the trace; the switch is asked at each statement."""
    source = (
        "observe.attach(None)\n"
        + opening
        + """
c.execute('create table t(a)')
observe.attach(sink)
c.execute('insert into t values(1)')
"""
    )
    assert store.events(source) == statements("a.db", "insert into t values(1)")


def test_sqlite3_trace_callback_of_the_store_lives_beside_ours(store: Observed) -> None:
    """set_trace_callback gives the store expanded statements and takes nothing from ours."""
    source = (
        AUTOCOMMIT
        + """
result = []
c.execute('create table t(a)')
c.set_trace_callback(result.append)
c.execute('insert into t values(?)', (5,))
observe.attach(None)
c.execute('insert into t values(6)')
observe.attach(sink)
c.set_trace_callback(lambda text: 1 / 0)
c.execute('select 1').fetchall()
c.set_trace_callback(None)
c.execute('select 2').fetchall()
"""
    )
    outcome = store.run(source)
    texts = ["create table t(a)", "insert into t values(?)", "select 1", "select 2"]
    assert outcome.events == statements("a.db", *texts)
    assert outcome.result == ["insert into t values(5)", "insert into t values(6)"]
    assert outcome.failures == []


def test_sqlite3_trace_callback_ends_with_its_connection(store: Observed) -> None:
    """A later connection at the address of a closed one does not call the old callback."""
    source = """
import sqlite3
result = []
record = result.append
for n in range(20):
    c = sqlite3.connect('a.db')
    c.execute('pragma user_version')
    c.set_trace_callback(record)
    c.close()
    del c
"""
    outcome = store.run(source)
    assert outcome.result == []
    assert outcome.events == statements("a.db", "pragma user_version") * 20


UNWINDING = """
import gc
def use():
    cursor = c.execute('select 1 union select 2')
    next(cursor)
    raise IndexError('mine')
try:
    use()
except IndexError as error:
    result = str(error)
gc.collect()
"""


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
def test_cursor_dropped_by_an_exception_keeps_the_exception(store: Observed, opening: str) -> None:
    """The end of a statement that an exception cuts off is reported, and the exception arrives."""
    outcome = store.run(opening + UNWINDING)
    assert outcome.result == "mine"
    assert outcome.events == statements("a.db", "select 1 union select 2")


def test_sqlite3_converter_error_arrives_unchanged(store: Observed) -> None:
    """A converter that raises while the statement is reset is not replaced by a SystemError."""
    source = """
import sqlite3
def refuse(data):
    raise KeyError('mine')
sqlite3.register_converter('bad', refuse)
c = sqlite3.connect('a.db', isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
c.execute('create table t(a bad)')
c.execute('insert into t values(1), (2)')
try:
    c.execute('select a from t').fetchall()
except KeyError as error:
    result = error.args[0]
"""
    outcome = store.run(source)
    assert outcome.result == "mine"
    assert outcome.events[-2:] == both("sql", "a.db", "select a from t")


def test_statements_run_inside_a_function_are_reported(store: Observed) -> None:
    """A Python function that SQLite calls may run statements and write files of its own."""
    source = (
        AUTOCOMMIT
        + """
import os
def helper():
    with open('f', 'w') as file:
        file.write('x')
    return 1
c.create_function('helper', 0, helper)
c.execute('select helper()').fetchall()
"""
    )
    text = "select helper()"
    assert store.events(source) == [
        ("sql", "before", "a.db", text),
        *both("write", "f"),
        ("sql", "after", "a.db", text),
    ]


def test_sqlite3_is_available_here(store: Observed) -> None:
    """On a supported interpreter no reason stands against observing sqlite3."""
    assert store.run("result = observe.sqlite3_unavailable()").result is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("m._VERSIONS = ((2, 7), (2, 7))", "is not CPython 3.11 to 3.14"),
        ("m._load = lambda file: ctypes.CDLL(None).sqlite3_trace_missing", "cannot be traced"),
        ("m._HEADER_BYTES += 8", "handle"),
        ("platform.machine = lambda: 'abacus'", "no machine code for abacus"),
        ("sys.modules['_sqlite3'] = None", "has no sqlite3"),
    ],
    ids=["version", "symbol", "layout", "machine", "absent"],
)
def test_sqlite3_says_why_it_is_unavailable(damage: str, reason: str) -> None:
    """Where sqlite3 cannot be observed, install works all the same and the reason is plain."""
    source = f"""
import ctypes, platform, sys
from harness import observe
from harness.observe import sqlite3_trace as m
{damage}
observe.install()
print(observe.sqlite3_unavailable())
"""
    command = [sys.executable, "-W", "error", "-c", source]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert reason in ended.stdout
    assert ended.stderr == ""


@pytest.mark.slow
def test_a_connection_that_cannot_be_observed_is_a_failure(tmp_path: Path) -> None:
    """Where sqlite3 is unseen, a store that uses it is not crashed at fewer boundaries in peace."""
    source = f"""
import platform, sqlite3
platform.machine = lambda: 'abacus'
from harness import observe
observe.install()
sqlite3.connect({str(tmp_path / "off.db")!r}).close()
observe.attach(lambda *report: None)
sqlite3.connect(':memory:').close()
print(len(observe.failures()))
sqlite3.connect({str(tmp_path / "on.db")!r}).close()
print(*observe.failures())
"""
    command = [sys.executable, "-W", "error", "-c", source]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    count, _, failure = ended.stdout.partition("\n")
    assert count == "0"
    assert "on.db' with sqlite3, whose statements cannot be observed here" in failure
    assert "no machine code for abacus" in failure


@pytest.mark.parametrize("opening", [APSW, AUTOCOMMIT], ids=["apsw", "sqlite3"])
@pytest.mark.parametrize(("phase", "rows"), [("before", 0), ("after", 1)])
def test_death_at_commit_inside_the_hook_is_exact(
    store: Observed, opening: str, phase: str, rows: int
) -> None:
    """A process that ends inside the hook before COMMIT leaves no row, and after COMMIT one."""
    source = (
        opening
        + f"""
import os
c.execute('create table t(a)')
def die(kind, phase, path, text):
    if (phase, text) == ({phase!r}, 'commit'):
        os._exit(9)
observe.attach(die)
c.execute('begin')
c.execute('insert into t values(1)')
c.execute('commit')
"""
    )
    assert store.run(source).status == 9
    connection = sqlite3.connect(store.root / "a.db")
    assert connection.execute("select count(*) from t").fetchone() == (rows,)
    connection.close()
