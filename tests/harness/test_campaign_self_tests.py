"""The self-tests of a campaign, in their order: what proves nothing, and what needs no crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import only_finding, run_body

from harness.crash import DETERMINISM
from harness.errors import ConfigurationError
from harness.runner import Result


def inconclusive(result: Result) -> str:
    """Return why a result proves nothing; demand that nothing was explored, and exit code 5."""
    assert result.inconclusive is not None, result.findings
    assert (result.verdicts, result.exit_code) == ([], 5)
    return result.inconclusive


@pytest.mark.parametrize(
    ("cause", "names"),
    [
        ("a set's order by id", "{object(): n for n in range(6)}, key=id"),
        ("random", "range(6), key=lambda n: random.random()"),
        ("the time", "range(6), key=lambda n: time.monotonic_ns() % 97"),
        ("the pid", "range(6), key=lambda n: random.Random(os.getpid() * 7919 + n).random()"),
    ],
)
def test_a_trace_that_differs_is_inconclusive(tmp_path: Path, cause: str, names: str) -> None:
    """A workload whose order depends on chance is recognised by its traces, before all else."""
    if "object()" in names:
        names = "range(6), key=lambda n: hash((n, os.getpid(), str(object()))) % 1009"
    body = f"""
    def act(self, root, run):
        for n in sorted({names}): save(root / f'file-{{n}}', n)
    def execute(self, root, run):
        for k in range(3): run.step(f'{{k}}', lambda: self.act(root, run), then=UNCHANGED)
    """
    reason = inconclusive(run_body(tmp_path, body))
    assert "differs from run to run" in reason
    assert reason.endswith(DETERMINISM)


@pytest.mark.parametrize(
    ("count", "where"), [(5, "killed at boundary"), (6, "the execution took another path")]
)
def test_a_path_that_changes_later_has_the_same_advice(
    tmp_path: Path, count: int, where: str
) -> None:
    """Two executions were alike, one that was killed is not: what to do is the same."""
    body = f"""
    def execute(self, root, run):
        count = len(os.listdir(root.parent))
        (root.parent / f'note-{{count}}').mkdir()
        if count > {count}: save(root / 'other', 1)
        run.step('one', lambda: save(root / 's', 1), then=1)
    """
    reason = inconclusive(run_body(tmp_path, body))
    assert reason.startswith(f"the trace differs from run to run: {where} ")
    assert reason.endswith(DETERMINISM)


def test_a_fixture_that_differs_is_inconclusive(tmp_path: Path) -> None:
    """Two workers would start from two fixtures, so the fixture must be the same in both."""
    body = "def prepare(self, root, run): save(root / 's', os.urandom(4).hex())"
    reason = inconclusive(run_body(tmp_path, body))
    assert reason.startswith("the observation of the fixture differs from run to run: $: expected")


def test_a_promise_that_differs_is_inconclusive(tmp_path: Path) -> None:
    """Facts drawn at random in prepare differ between workers, and are named."""
    body = """
    def prepare(self, root, run): save(root / 's', 0); run.promise('kept', n=os.urandom(4).hex())
    def promised_kept(self, root, evidence, *, n): return True
    """
    assert inconclusive(run_body(tmp_path, body)).startswith(
        "what prepare promised and did differs from run to run: boundary 1 was recorded as"
    )


def test_content_that_differs_is_inconclusive(tmp_path: Path) -> None:
    """A store that writes random content under an equal trace is not blamed for a crash."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', os.urandom(4).hex()))
    """
    reason = inconclusive(run_body(tmp_path, body))
    assert "or the store writes something that differs from run to run" in reason


def test_marks_do_not_count_as_boundaries(tmp_path: Path) -> None:
    """A store whose writes nobody sees is inconclusive, whatever its steps say."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: subprocess.run(['sh', '-c', 'printf 1 > s']) and None, then=1)
    """
    assert "no boundary of the store was seen" in inconclusive(run_body(tmp_path, body))


def test_a_step_that_was_not_stored_needs_no_crash(tmp_path: Path) -> None:
    """A store that writes only when it is closed is violated at its first acknowledgement."""
    body = """
    def prepare(self, root, run): (root / 's').write_text('')
    def execute(self, root, run):
        with open(root / 's', 'a') as file:
            for n in (1, 2):
                run.step(f'{n}', lambda n=n: print(n, file=file), then=list(range(1, n + 1)))
    def observe(self, root): return [int(n) for n in (root / 's').read_text().split()]
    """
    result = run_body(tmp_path, body)
    found = only_finding(result).violation
    assert (result.exit_code, result.verdicts) == (1, [])
    assert found.invariant == "acknowledged_step_is_stored"
    assert "step '1' was acknowledged" in found.message
    assert "$[0]: expected 1, observed nothing" in found.message


def test_a_wrong_then_needs_no_crash(tmp_path: Path) -> None:
    """The files after a step differ from `then`: violated, and nobody can say which is wrong."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=lambda: 2)
    """
    result = run_body(tmp_path, body)
    found = only_finding(result).violation
    assert (result.exit_code, result.verdicts) == (1, [])
    assert found.invariant == "acknowledged_step_is_stored"
    assert "step 'one'" in found.message
    assert "$: expected 2, observed 1" in found.message
    assert "was not stored, or `then` is wrong; only you can say which" in found.message


def test_a_step_that_is_not_unchanged_needs_no_crash(tmp_path: Path) -> None:
    """UNCHANGED is compared with the files at the step's own beginning."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=UNCHANGED)
    """
    found = only_finding(run_body(tmp_path, body)).violation
    assert found.invariant == "acknowledged_step_is_stored"
    assert "do not show what UNCHANGED says: $: expected 0, observed 1" in found.message


def test_a_change_between_steps_is_inconclusive(tmp_path: Path) -> None:
    """What changes outside every step is found, also before a step that is UNCHANGED."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=1)
        save(root / 's', 5)
        run.step('two', lambda: save(root / 'other', 1), then=UNCHANGED)
    """
    reason = inconclusive(run_body(tmp_path, body))
    assert "changed the store before step 'two'" in reason
    assert "$: expected 1, observed 5" in reason
    assert "into a step" in reason


def test_a_change_after_the_last_step_is_inconclusive(tmp_path: Path) -> None:
    """What a store writes only when it is closed is outside every step."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=1)
        save(root / 's', 5)
    """
    assert "before the end of the execution" in inconclusive(run_body(tmp_path, body))


def test_a_then_that_is_wrong_goes_before_a_change_between_steps(tmp_path: Path) -> None:
    """Where both apply the store is violated: that needs no crash and no second look."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=1)
        save(root / 's', 5)
        run.step('two', lambda: save(root / 's', 6), then=7)
    """
    found = only_finding(run_body(tmp_path, body)).violation
    assert found.invariant == "acknowledged_step_is_stored"
    assert "step 'two'" in found.message


@pytest.mark.parametrize(
    ("body", "invariant"),
    [
        ("def check(self, root, evidence): yield Check('fine', False, 'never')", "fine"),
        ("def check(self, root, evidence): assert False, 'never'", "check"),
        (
            "def prepare(self, root, run): save(root / 's', 0); run.promise('kept')\n"
            "def promised_kept(self, root, evidence): assert False, 'never'",
            "promise kept",
        ),
        ("def recover(self, root, run): raise ValueError('never')", "recovers"),
        ("def resume(self, root, run): raise ValueError('never')", "resumes"),
        ("def recover(self, root, run): save(root / 's', 9)", "step_atomicity"),
        ("def resume(self, root, run): save(root / 's', 9)", "complete"),
        (
            "delivery = {'mail': 'at-least-once'}\n"
            "def prepare(self, root, run): save(root / 's', 0); run.promise('mail', id=1)",
            "delivery mail",
        ),
    ],
)
def test_a_store_that_is_wrong_without_a_crash_is_violated(
    tmp_path: Path, body: str, invariant: str
) -> None:
    """The control run recovers, judges, resumes and judges the finished execution."""
    result = run_body(tmp_path, body)
    finding = only_finding(result)
    assert finding.violation.invariant == invariant
    assert finding.violation.stage.startswith("after the finished execution, ")
    assert "no crash" not in finding.violation.message
    assert (finding.boundaries, result.verdicts, result.exit_code) == ((), [], 1)
    assert finding.replay == "crashconform run tested"


def test_an_idle_step_is_inconclusive(tmp_path: Path) -> None:
    """A step without `then` that changes nothing could be lost unseen."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1))
        run.step('idle', lambda: save(root / 'other', 2))
    """
    reason = inconclusive(run_body(tmp_path, body))
    assert "a process that died right after step 'idle' as before it" in reason


IDLE = """
def execute(self, root, run):
    run.step('idle', lambda: save(root / 'other', 2))
"""


def test_a_control_violation_goes_before_an_idle_step(tmp_path: Path) -> None:
    """A wrong invariant of the finished execution is told before a step that does nothing."""
    body = IDLE + "def check(self, root, evidence): yield Check('fine', False)"
    assert only_finding(run_body(tmp_path, body)).violation.invariant == "fine"


def test_an_idle_step_goes_before_step_atomicity_of_the_control(tmp_path: Path) -> None:
    """step_atomicity of the finished execution is told only where every step does something."""
    body = IDLE + "def recover(self, root, run): save(root / 's', 9)"
    assert "step 'idle'" in inconclusive(run_body(tmp_path, body))


def test_an_idle_step_goes_before_completeness_of_the_control(tmp_path: Path) -> None:
    """complete of the finished execution is told only where every step does something."""
    body = IDLE + "def complete(self, root, evidence): return False"
    assert "step 'idle'" in inconclusive(run_body(tmp_path, body))


BLIND = """
def execute(self, root, run):
    run.step('one', lambda: save(root / 's', 0), then=0)
"""


def test_checks_that_cannot_fail_are_inconclusive(tmp_path: Path) -> None:
    """The fixture, taken for the finished execution, must be judged wrong."""
    reason = inconclusive(run_body(tmp_path, BLIND))
    assert reason.startswith("the checks cannot fail: the untouched fixture")


def test_a_promise_makes_the_checks_fail(tmp_path: Path) -> None:
    """Promises of the end, judged on the fixture, are enough to prove that checks can fail."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 'other', 1), then=UNCHANGED)
        run.promise('kept')
    def promised_kept(self, root, evidence): return (root / 'other').exists()
    """
    result = run_body(tmp_path, body)
    assert (result.inconclusive, result.exit_code) == (None, 0)


def test_a_withdrawn_promise_does_not_make_the_checks_fail(tmp_path: Path) -> None:
    """A promise that does not bind at the end proves nothing about the end."""
    body = """
    def execute(self, root, run):
        run.promise('kept')
        run.withdraw('kept')
        run.step('one', lambda: save(root / 'other', 1), then=UNCHANGED)
    def promised_kept(self, root, evidence): return (root / 'other').exists()
    def complete(self, root, evidence): return True
    """
    assert inconclusive(run_body(tmp_path, body)).startswith("the checks cannot fail")


def test_an_effect_of_prepare_does_not_make_the_checks_fail(tmp_path: Path) -> None:
    """Only effects of the execution are taken away: old work that was done is no fault."""
    body = """
    delivery = {'mail': 'exactly-once'}
    def prepare(self, root, run):
        save(root / 's', 0); run.promise('mail', id=1); run.effect('mail', id=1)
    """
    reason = inconclusive(run_body(tmp_path, body, BLIND))
    assert reason.startswith("the checks cannot fail")


def test_an_effect_that_was_promised_makes_the_checks_fail(tmp_path: Path) -> None:
    """Delivery is judged as at the end: what was promised and not done is a fault."""
    body = """
    delivery = {'mail': 'exactly-once'}
    def act(self, root, run):
        save(root / 'other', 1)
        if {'id': 1} not in run.effects('mail'): run.effect('mail', id=1)
    def execute(self, root, run):
        run.promise('mail', id=1)
        run.step('one', lambda: self.act(root, run), then=UNCHANGED)
    """
    result = run_body(tmp_path, body)
    assert (result.inconclusive, result.findings, result.exit_code) == (None, [], 0)


def test_a_step_in_the_middle_makes_the_checks_fail(tmp_path: Path) -> None:
    """Where the end looks like the fixture, the state after an earlier step is tried."""
    body = """
    def execute(self, root, run):
        for n in (1, 0): run.step(f'save {n}', lambda n=n: save(root / 's', n), then=n)
    """
    assert run_body(tmp_path, body).exit_code == 0


CACHE = """
durability = 'cache'
def prepare(self, root, run): pass
def observe(self, root):
    return {p.name: load(p) for p in sorted(root.iterdir()) if p.suffix != '.new'}
"""


def test_a_cache_is_falsified_by_its_end(tmp_path: Path) -> None:
    """A cache's end, judged as its start, must be wrong; here it is."""
    body = "def execute(self, root, run): run.step('a', lambda: save(root / 'a', 1))"
    assert run_body(tmp_path, CACHE, body).exit_code == 0


def test_a_cache_that_only_loses_is_inconclusive(tmp_path: Path) -> None:
    """A cache whose end is a rest of its start cannot be judged wrong that way."""
    body = """
    def prepare(self, root, run): save(root / 'a', 1)
    def execute(self, root, run):
        run.step('drop', lambda: (os.rename(root / 'a', root / 'b.new'), None)[1], then={})
    """
    reason = inconclusive(run_body(tmp_path, CACHE, body))
    assert "the finished execution, taken for one that had not begun" in reason


@pytest.mark.parametrize(
    "spoil",
    [
        "save(root / 's', 9)",
        "(root / 's').write_text('{')",
        "(root / 'lock').mkdir()",
    ],
)
def test_a_spoiled_end_that_is_judged_wrong_is_enough(tmp_path: Path, spoil: str) -> None:
    """With spoil() the damaged end is recovered, judged and resumed; any violation will do."""
    body = f"""
    def spoil(self, root): {spoil}
    def resume(self, root, run):
        (root / 'lock').mkdir()
        save(root / 's', 0)
    def complete(self, root, evidence): return True
    """
    assert run_body(tmp_path, BLIND, body).exit_code == 0


def test_a_spoiled_end_that_is_judged_right_is_inconclusive(tmp_path: Path) -> None:
    """A spoil that nothing notices shows that the checks cannot fail."""
    reason = inconclusive(run_body(tmp_path, "def spoil(self, root): save(root / 'x', 1)"))
    assert "the golden end damaged by spoil()" in reason


def test_configuration_goes_before_a_trace_that_differs(tmp_path: Path) -> None:
    """A fixture that cannot be observed is told before a trace that differs from run to run."""
    body = """
    def prepare(self, root, run): pass
    def execute(self, root, run):
        run.step('one', lambda: [save(root / str(n), n) for n in range(os.getpid() % 7)] and None)
    """
    with pytest.raises(ConfigurationError, match="observe, on the fixture, raised"):
        run_body(tmp_path, body)


def test_configuration_goes_before_no_boundary(tmp_path: Path) -> None:
    """An empty contract is told before a store that shows no boundary."""
    body = """
    delivery = {'mail': 'at-least-once'}
    def execute(self, root, run): run.step('one', lambda: None)
    """
    with pytest.raises(ConfigurationError, match="nothing promises 'mail'"):
        run_body(tmp_path, body)


def test_a_refusal_that_does_not_come_is_violated(tmp_path: Path) -> None:
    """A store that accepts what it must refuse lost a check: no crash is needed to see that."""
    body = """
    def execute(self, root, run):
        run.step('one', lambda: save(root / 's', 1), then=1)
        run.step('two', lambda: save(root / 's', 2), raises=(KeyError, OSError))
    """
    result = run_body(tmp_path, body)
    finding = only_finding(result)
    assert (finding.kind, finding.violation.invariant, finding.step) == (
        "violated",
        "refuses",
        "two",
    )
    assert "raises= says that KeyError or OSError must come" in finding.violation.message
    assert (result.verdicts, result.exit_code) == ([], 1)
