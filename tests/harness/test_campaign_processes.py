"""Children that take another path, hang, exit, are killed, print, or leave something behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from support import recorded, run_body, written

from harness.client import ZygoteClient
from harness.crash import DETERMINISM
from harness.discovery import Found
from harness.errors import ConfigurationError, ZygoteDied
from harness.runner import Options, Result, run_campaign
from harness.verdict import Verdict
from harness.workdir import Workdir

TIMEOUT_SECONDS = 1.0

MISBEHAVING = """
def act(self, root, n):
    if FLAG.exists() and n == 2: {deed}
    save(root / 's', n)
def execute(self, root, run):
    for n in (1, 2): run.step(f'save {{n}}', lambda n=n: self.act(root, n), then=n)
"""


def test_a_child_that_takes_another_path_is_diverged(tmp_path: Path) -> None:
    """Where the trace differs from the recorded one the verdict says at which boundary, and how."""
    body = MISBEHAVING.format(deed="save(root / 'other', 1)")
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(len(store.recording.lines), "diverged")
        assert store.verdict(store.at("after step save 1")).kind == "survived"
    assert found.invariant == "same_trace"
    assert "was recorded as 'before write s.new' and is now 'before write other.new'" in (
        found.message
    )


def test_a_child_with_other_steps_is_diverged(tmp_path: Path) -> None:
    """Equal boundaries with other promises are no equal execution."""
    body = """
    def execute(self, root, run):
        run.promise('kept', n=1 + FLAG.exists())
        run.step('one', lambda: save(root / 's', 1), then=1)
    def promised_kept(self, root, evidence, *, n): return True
    """
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(len(store.recording.lines), "diverged")
    assert found.invariant == "same_journal"
    assert '{"n": 1}' in found.message
    assert '{"n": 2}' in found.message


@pytest.mark.parametrize(
    ("deed", "kind", "message"),
    [
        ("os._exit(0)", "diverged", "ended by itself with status 0 after 7 boundaries"),
        ("os._exit(86)", "diverged", "after 7 boundaries, without reaching boundary 13"),
        ("os.kill(os.getpid(), 9)", "errored", "was killed by signal SIGKILL at boundary 7"),
        ("raise OSError('full')", "diverged", "raised OSError: full after 7 boundaries"),
        ("sys.exit(0)", "diverged", "raised SystemExit: 0 after 7 boundaries"),
    ],
)
def test_a_child_that_does_not_reach_its_boundary_is_no_pass(
    tmp_path: Path, deed: str, kind: str, message: str
) -> None:
    """An execution that ends before its boundary says how it ended and where."""
    body = MISBEHAVING.format(deed=deed)
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(len(store.recording.lines), kind)
    assert found.invariant == "dies_at_boundary"
    assert message in found.message


HANGING = "if FLAG.exists(): time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "invariant", "stage", "message"),
    [
        (MISBEHAVING.format(deed="time.sleep(60)"), "ends", "execution", "before boundary 13"),
        (
            f"def recover(self, root, run):\n    {HANGING}",
            "recovers",
            "in recovery",
            "recover hung for",
        ),
        (
            f"def resume(self, root, run):\n    {HANGING}\n    save(root / 's', 2)",
            "resumes",
            "in resume",
            "resume hung for",
        ),
        (
            f"def observe(self, root):\n    {HANGING}\n    return load(root / 's')",
            "observable",
            "after recovery",
            "observe hung for",
        ),
        (
            f"def check(self, root, evidence):\n    {HANGING}",
            "judged",
            "after recovery",
            "check hung for",
        ),
        (
            f"def complete(self, root, evidence):\n    {HANGING}\n    return True",
            "judged",
            "after resume",
            "complete hung for",
        ),
    ],
)
def test_a_child_that_hangs_shows_its_stack(
    tmp_path: Path, body: str, invariant: str, stage: str, message: str
) -> None:
    """A child that does not end in time is hung, and the report shows where it was."""
    with recorded(tmp_path, body, timeout_seconds=TIMEOUT_SECONDS) as store:
        store.misbehave()
        verdict = store.verdict(len(store.recording.lines))
    found = verdict.violation
    assert found is not None
    assert (verdict.kind, found.invariant, found.stage) == ("hung", invariant, stage)
    assert message in found.message
    told = "\n".join([found.message, *found.difference])
    assert 'tested.py", line' in told
    assert "/harness/" not in told
    assert "Extension modules" not in told
    assert "tested.py" not in verdict.printed


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os._exit(0)", "ended by itself with status 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by signal SIGSEGV"),
        ("sys.exit(3)", "raised SystemExit: 3"),
    ],
)
@pytest.mark.parametrize(
    ("method", "arguments", "kind", "invariant"),
    [
        ("recover", "root, run", "violated", "recovers"),
        ("resume", "root, run", "violated", "resumes"),
        ("observe", "root", "violated", "observable"),
        ("check", "root, evidence", "errored", "judged"),
        ("complete", "root, evidence", "errored", "judged"),
    ],
)
def test_a_child_that_ends_early_is_no_pass(
    tmp_path: Path, method: str, arguments: str, kind: str, invariant: str, deed: str, words: str
) -> None:
    """A phase that ends its process, also with status 0, gets the verdict of one that raises."""
    rest = {"observe": "return load(root / 's')", "complete": "return True"}.get(method, "")
    body = f"def {method}(self, {arguments}):\n    if FLAG.exists(): {deed}\n    {rest}\n"
    if method == "resume":
        body += "    save(root / 's', 2)\n"
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(len(store.recording.lines), kind)
    assert found.invariant == invariant
    assert found.message.startswith(f"{method} {words}")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "stage"), [("recover", "in recovery"), ("resume", "in resume")])
def test_a_process_left_behind_is_violated(tmp_path: Path, method: str, stage: str) -> None:
    """A daemon that outlives recover or resume is named, and is gone afterwards."""
    command = "[sys.executable, '-c', 'import time; time.sleep(61)']"
    body = f"""
    def {method}(self, root, run):
        if FLAG.exists(): subprocess.Popen({command}, start_new_session=True)
        save(root / 's', 2)
    def execute(self, root, run): run.step('one', lambda: save(root / 's', 2), then=2)
    """
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(len(store.recording.lines))
        left = [p.pid for p in psutil.process_iter(["cmdline"]) if _is_daemon(p)]
    assert (found.invariant, found.stage) == ("no_process_left", stage)
    assert found.message.startswith(f"{method} returned and left a process: ")
    assert "time.sleep(61)" in found.message
    assert left == []


def _is_daemon(process: psutil.Process) -> bool:
    return "import time; time.sleep(61)" in (process.info["cmdline"] or [])


@pytest.mark.slow
def test_a_process_left_behind_by_the_workload_needs_no_crash(tmp_path: Path) -> None:
    """An execution that returns and leaves a process is violated before anything is crashed."""
    body = """
    def act(self, root):
        subprocess.Popen(['sleep', '62'])
        save(root / 's', 1)
    def execute(self, root, run): run.step('one', lambda: self.act(root), then=1)
    """
    result = run_body(tmp_path, body)
    (finding,) = result.findings
    assert finding.violation.invariant == "no_process_left"
    assert "sleep 62" in finding.violation.message
    assert (result.verdicts, result.exit_code) == ([], 1)


def test_processes_of_a_crashed_workload_are_reaped_before_judging(tmp_path: Path) -> None:
    """What the crashed process had started dies with it: it cannot write into the recovery."""
    body = """
    def act(self, root):
        late = "import time; time.sleep(0.2); open('s', 'w').write('9')"
        child = subprocess.Popen([sys.executable, '-c', late])
        save(root / 's', 1)
        child.kill(); child.wait()
    def execute(self, root, run): run.step('one', lambda: self.act(root), then=1)
    def recover(self, root, run): time.sleep(0.4)
    """
    with recorded(tmp_path, body) as store:
        assert store.verdict(store.at("after rename s.new s")).kind == "survived"


@pytest.mark.slow
def test_a_store_with_threads_is_crashed_as_any_other(tmp_path: Path) -> None:
    """Boundaries of another thread are numbered and crashed too."""
    body = """
    def act(self, root, n):
        thread = threading.Thread(target=save, args=(root / 's', n))
        thread.start(); thread.join()
    def execute(self, root, run):
        for n in (1, 2): run.step(f'save {n}', lambda n=n: self.act(root, n), then=n)
    """
    result = run_body(tmp_path, body)
    assert (result.count("survived"), result.exit_code) == (13, 0), result.findings


def test_what_children_printed_is_in_the_finding(tmp_path: Path) -> None:
    """Output of the execution, of recovery and of judging stands in the finding, each named."""
    body = """
    def execute(self, root, run):
        print('executing')
        run.step('one', lambda: save(root / 's', 1), then=1)
    def recover(self, root, run): print('recovering', file=sys.stderr)
    def observe(self, root):
        os.write(1, b'observing')
        return load(root / 's')
    def check(self, root, evidence): yield Check('fine', not FLAG.exists())
    """
    with recorded(tmp_path, body) as store:
        boundary = store.at("after step one")
        assert store.verdict(boundary).printed == ""
        store.misbehave()
        printed = store.verdict(boundary).printed
    assert printed.splitlines() == [
        "execute printed:",
        "executing",
        "recover printed:",
        "recovering",
        "judging printed:",
        "observing",
    ]


@pytest.mark.slow
def test_a_campaign_with_a_diverged_boundary_is_inconclusive(tmp_path: Path) -> None:
    """An execution that leaves its path only later, by what it counted outside the root, counts."""
    body = """
    def execute(self, root, run):
        count = len(os.listdir(root.parent))
        (root.parent / f'note-{count}').mkdir()
        if count > 12: save(root / 'other', 1)
        run.step('one', lambda: save(root / 's', 1), then=1)
    """
    result = run_body(tmp_path, body)
    diverged = result.count("diverged")
    assert 0 < diverged < len(result.verdicts)
    assert result.inconclusive == (
        f"{diverged} of {len(result.verdicts)} executions took another path than recorded. "
        f"{DETERMINISM}"
    )
    assert result.exit_code == 5


class _Killing:
    """A listener that kills a worker once the first boundary is done."""

    def started(self, found: Found) -> None:
        """Wait for boundaries."""

    def exploring(self, result: Result) -> None:
        """Wait for boundaries."""

    def judged(self, result: Result, verdict: Verdict) -> None:
        """Kill every zygote of this process."""
        for child in psutil.Process().children():
            if "harness.zygote" in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)

    def finished(self, result: Result) -> None:
        """Never comes."""


def test_a_worker_that_is_killed_from_outside_is_said_so(tmp_path: Path) -> None:
    """A dead worker ends the run with an error that names the campaign and the signal."""
    found = written(tmp_path, "pass")
    with Workdir.choose(None, 2) as workdir:
        options = Options(import_path=(tmp_path,))
        with pytest.raises(ZygoteDied, match=r"^tested: a worker process .* by signal 9") as caught:
            run_campaign(found, workdir, options, _Killing())
    assert "harness" in str(caught.value)


def test_a_module_that_ends_its_importer_is_said_so(tmp_path: Path) -> None:
    """A campaign whose import exits is told apart from a worker that was killed."""
    path = tmp_path / "ending.py"
    path.write_text("import os\nprint('going', flush=True)\nos._exit(4)\n")
    with (
        ZygoteClient((tmp_path,)) as zygote,
        pytest.raises(ZygoteDied, match="with status 4") as caught,
    ):
        zygote.list([str(path)], tmp_path)
    assert "Did an import of the campaign end it, or did the store" in str(caught.value)
    assert "going" in str(caught.value)


def test_a_zygote_goes_when_its_client_goes(tmp_path: Path) -> None:
    """Closing the client ends the process and what it was running."""
    client = ZygoteClient((tmp_path,))
    pid = client.pid
    started = time.monotonic()
    client.close()
    assert not psutil.pid_exists(pid)
    assert time.monotonic() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("time.sleep(60)", ["execute hung for", 'tested.py", line']),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ["execute was killed by signal SIGSEGV"]),
        ("os._exit(0)", ["execute ended by itself with status 0", "printed:\nworking"]),
    ],
)
def test_a_workload_that_never_returns_is_a_configuration_error(
    tmp_path: Path, deed: str, words: list[str]
) -> None:
    """Before any crash nobody can say whose fault it is; the message shows all that is known."""
    body = f"""
    def act(self, root): print('working', flush=True); {deed}
    def execute(self, root, run): run.step('one', lambda: self.act(root))
    """
    with pytest.raises(ConfigurationError) as caught:
        run_body(tmp_path, body, timeout_seconds=TIMEOUT_SECONDS)
    message = str(caught.value)
    assert [word for word in [*words, "Nothing has been crashed yet"] if word not in message] == []
    assert "printed:\nworking" in message
    assert "/harness/" not in message
    assert "Extension modules" not in message
    assert message.count("in act\n") <= 1


@pytest.mark.slow
def test_an_observation_that_hangs_in_a_dead_tree_is_hung(tmp_path: Path) -> None:
    """A reader that waits for ever on what a dead process left is hung, without any crash state."""
    body = """
    def observe(self, root):
        if (root / 's.new').exists() or load(root / 's') == 1: time.sleep(60)
        return load(root / 's')
    """
    result = run_body(tmp_path, body, timeout_seconds=TIMEOUT_SECONDS)
    (finding,) = result.findings
    assert (finding.kind, finding.violation.invariant) == ("hung", "observable")
    assert "after step 'save 1'" in finding.violation.message
    assert "/harness/" not in finding.violation.message + finding.printed
    assert (finding.step, finding.violation.stage) == ("save 1", "in the recording")
    assert 'tested.py", line' in finding.violation.message
    assert (result.verdicts, result.exit_code) == ([], 1)
