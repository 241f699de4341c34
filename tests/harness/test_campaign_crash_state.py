"""What a store does after a crash, and which verdict it gets: exceptions, refusals, assertions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import only_finding, recorded, run_body

from harness.report import summary_lines

BOUNDARY = "after write s.new"
"""Inside the first step: its new value is written and not yet in place."""

TORN = """
def save_torn(path, value):
    with open(path, 'wb', buffering=0) as file:
        file.write(b'"')
        file.write(value.encode() + b'"')

class Tested(Campaign):
    def prepare(self, root, run): save_torn(root / 's', 'old')
    def execute(self, root, run): run.step('one', lambda: save_torn(root / 's', 'new'), then='new')
    def observe(self, root): return load(root / 's')
"""


def violated(folder: Path, body: str, *, kind: str = "violated") -> tuple[str, str, str]:
    """Crash inside the first step, the flag up; return invariant, stage and message."""
    with recorded(folder, body) as store:
        assert store.verdict(store.at(BOUNDARY)).kind == "survived"
        store.misbehave()
        found = store.violation(store.at(BOUNDARY), kind)
    return found.invariant, found.stage, found.message


def test_recovery_that_raises_is_violated(tmp_path: Path) -> None:
    """An exception of recover breaks `recovers`, with its text."""
    body = """
    def recover(self, root, run):
        if FLAG.exists(): raise ValueError('torn page')
    """
    assert violated(tmp_path, body) == (
        "recovers",
        "in recovery",
        "recover raised ValueError: torn page",
    )


def test_recovery_that_raises_only_the_second_time_is_violated(tmp_path: Path) -> None:
    """A recovery that cannot be repeated breaks `recovers` too."""
    body = """
    def recover(self, root, run):
        if FLAG.exists(): (root / 'lock').mkdir()
    """
    invariant, stage, message = violated(tmp_path, body)
    assert (invariant, stage) == ("recovers", "in recovery")
    assert message.startswith("recover, once more, raised FileExistsError")


def test_recovery_that_changes_more_each_time_is_violated(tmp_path: Path) -> None:
    """What a second recovery changes is shown as the difference of two observations."""
    body = """
    def recover(self, root, run):
        if FLAG.exists(): save(root / 's', 7 - load(root / 's') % 2 * 7)
    def check(self, root, evidence): return None
    def after_recovery(self, expected): return expected
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=1, between=ANYTHING)
    """
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(store.at(BOUNDARY))
    assert found.invariant == "recovery_is_idempotent"
    assert found.stage == "after a second recovery"
    assert found.difference == ("$: expected 7, observed 0",)


def test_resume_that_raises_is_violated(tmp_path: Path) -> None:
    """An exception of resume breaks `resumes`."""
    body = """
    def resume(self, root, run):
        if FLAG.exists(): raise ValueError('locked')
        save(root / 's', 2)
    """
    assert violated(tmp_path, body) == (
        "resumes",
        "in resume",
        "resume raised ValueError: locked",
    )


def test_a_step_that_fails_after_the_crash_is_the_stores_answer(tmp_path: Path) -> None:
    """A workload that catches the error of a step in resume does not hide it."""
    body = """
    def act(self, root, n):
        if FLAG.exists() and n == 1 and (root / 's.new').exists(): raise OSError('stale lock')
        save(root / 's', n)
    def execute(self, root, run):
        for n in (1, 2):
            try: run.step(f'save {n}', lambda n=n: self.act(root, n), then=n)
            except OSError: pass
    """
    assert violated(tmp_path, body) == (
        "resumes",
        "in resume",
        "resume raised OSError: stale lock",
    )


def test_a_refusal_that_does_not_come_after_the_crash_is_violated(tmp_path: Path) -> None:
    """A store that accepts after a crash what it must refuse breaks `resumes`."""
    body = """
    def refused(self):
        if not (FLAG.exists() and os.path.exists('s.new')): raise PermissionError
    def execute(self, root, run):
        run.step('refused', self.refused, raises=PermissionError)
        run.step('one', lambda: save(root / 's', 1), then=1)
    def resume(self, root, run):
        run.step('refused again', self.refused, raises=PermissionError)
        save(root / 's', 1)
    """
    invariant, stage, message = violated(tmp_path, body)
    assert (invariant, stage) == ("resumes", "in resume")
    assert "step 'refused again' returned" in message


def test_a_torn_file_ends_in_observe(tmp_path: Path) -> None:
    """An exception of observe at a crash state breaks `observable`: it worked before the crash."""
    result = run_body(tmp_path, TORN)
    finding = only_finding(result)
    assert finding.violation.invariant == "observable"
    assert finding.violation.message.startswith("observe raised JSONDecodeError")
    assert finding.violation.stage == "after recovery"
    lines = result.recording.lines if result.recording else []
    assert [lines[n - 1] for n in finding.boundaries] == [
        "before write s",
        "after write s",
        "before write s",
    ]
    assert finding.step == "one"
    assert result.exit_code == 1


def test_an_observe_that_exits_is_violated(tmp_path: Path) -> None:
    """A store that ends its reader by sys.exit is as unobservable as one that raises."""
    body = """
    def observe(self, root):
        if FLAG.exists(): sys.exit('corrupt')
        return load(root / 's')
    """
    assert violated(tmp_path, body) == (
        "observable",
        "after recovery",
        "observe raised SystemExit: corrupt",
    )


def test_an_assertion_in_check_is_violated_under_its_name(tmp_path: Path) -> None:
    """A plain assert counts as the invariant `check` and shows its line and its values."""
    body = """
    def check(self, root, evidence):
        size = 3 if FLAG.exists() else 4
        assert size == 4
    """
    assert violated(tmp_path, body) == ("check", "after recovery", "assert size == 4; size = 3")


def test_a_check_that_does_not_hold_is_violated_under_its_name(tmp_path: Path) -> None:
    """A false Check gives its own invariant and message, the first of its name only."""
    body = """
    def check(self, root, evidence):
        yield Check('whole', True)
        yield Check('whole', not FLAG.exists(), 'first')
        yield Check('whole', not FLAG.exists(), 'second')
        yield Check('clean', not FLAG.exists(), 'third')
    """
    with recorded(tmp_path, body) as store:
        store.misbehave()
        verdict = store.verdict(store.at(BOUNDARY))
    assert verdict.violation is not None
    assert verdict.violation.invariant == "whole"
    assert verdict.violation.message == "first"
    assert verdict.violation.also == ("clean",)
    assert verdict.subjects["whole"] == 3
    assert verdict.subjects["clean"] == 1


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("return not FLAG.exists()", "kept(n=1) was acknowledged and does not hold any more"),
        ("assert not FLAG.exists(), 'gone'; return True", "kept(n=1): gone"),
    ],
)
def test_a_promise_that_does_not_hold_is_violated_under_its_name(
    tmp_path: Path, judge: str, message: str
) -> None:
    """A judge that returns False or asserts breaks its promise, with its facts."""
    body = f"""
    def prepare(self, root, run): save(root / 's', 0); run.promise('kept', n=1)
    def promised_kept(self, root, evidence, *, n): {judge}
    """
    assert violated(tmp_path, body) == ("promise kept", "after recovery", message)


def test_a_complete_that_is_false_is_violated(tmp_path: Path) -> None:
    """A resumed store that did not reach its end breaks `complete`."""
    body = "def complete(self, root, evidence): return not FLAG.exists()"
    invariant, stage, message = violated(tmp_path, body)
    assert (invariant, stage) == ("complete", "after resume")
    assert "did not reach its end" in message


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("check", "def check(self, root, evidence): boom()"),
        ("complete", "def complete(self, root, evidence): return boom() is None"),
        (
            "promised_kept",
            "def prepare(self, root, run): save(root / 's', 0); run.promise('kept')\n"
            "def promised_kept(self, root, evidence): return boom() is None",
        ),
    ],
)
def test_anything_else_that_judging_raises_is_errored(
    tmp_path: Path, method: str, body: str
) -> None:
    """An error of the campaign's own judging code is errored, never passed."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    boom = "def boom():\n    if FLAG.exists(): raise KeyError('x')\n\n"
    source = f"{boom}class Tested(_Base):\n{lines}\n"
    with recorded(tmp_path, source) as store:
        assert store.verdict(store.at(BOUNDARY)).kind == "survived"
        store.misbehave()
        found = store.violation(store.at(BOUNDARY), "errored")
    assert found.invariant == "judged"
    assert found.message.startswith(f"{method} raised KeyError: 'x'\nTraceback")


def test_an_errored_boundary_makes_the_run_fail(tmp_path: Path) -> None:
    """A run with an errored boundary and nothing worse ends with 3."""
    body = """
    def check(self, root, evidence):
        if evidence.in_flight == 'save 2': raise KeyError('x')
    """
    result = run_body(tmp_path, body)
    finding = only_finding(result)
    assert finding.kind == "errored"
    assert finding.step == "save 2"
    assert result.count("errored") == len(finding.boundaries) > 0
    assert result.exit_code == 3


def test_a_new_complaint_of_sqlite_is_violated(tmp_path: Path) -> None:
    """SQLite's own check of the recovered database counts, on a copy, where golden has none."""
    body = """
    class Tested(Campaign):
        def prepare(self, root, run):
            self.run(root, 'create table p(id integer primary key);'
                     'create table c(p references p); insert into p values (1);')
        def run(self, root, sql):
            db = sqlite3.connect(root / 'a.db', isolation_level=None)
            db.executescript(sql)
            db.close()
        def execute(self, root, run):
            run.step('one', lambda: self.run(root, 'insert into c values (1)'), then=1)
        def recover(self, root, run):
            if FLAG.exists(): self.run(root, 'delete from p; insert into c values (2)')
        def observe(self, root):
            db = sqlite3.connect(root / 'a.db', isolation_level=None)
            try: return db.execute('select count(*) from c').fetchall()[0][0]
            finally: db.close()
    """
    with recorded(tmp_path, body) as store:
        boundary = store.at("after step one")
        assert store.verdict(boundary).kind == "survived"
        store.misbehave()
        found = store.violation(boundary)
    assert found.invariant == "sqlite_integrity"
    assert "foreign key of c row 1 refers to nothing in p" in found.message


@pytest.mark.parametrize(
    ("durability", "expected"),
    [
        ("full", []),
        (
            "consistent",
            [
                "     note: durability consistent: a power loss may take the newest steps; "
                "not part of this fault model"
            ],
        ),
    ],
)
def test_what_a_fault_model_cannot_show_of_a_durability_is_said(
    tmp_path: Path, durability: str, expected: list[str]
) -> None:
    """Under process death "consistent" is judged as "full" is, and the summary says so once."""
    result = run_body(tmp_path, f"durability = {durability!r}")
    assert result.exit_code == 0
    assert [line for line in summary_lines(result) if "durability" in line] == expected
