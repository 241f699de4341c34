"""What a store may do to the harness itself: to its folder, its forks, and the kind of its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import REPOSITORY, only_finding, recorded, run_body, written

from harness.client import ZygoteClient
from harness.errors import ConfigurationError

CRASHED = "after write s.new"
"""Inside the first step: its new value is written and not yet in place."""


@pytest.mark.parametrize(("method", "invariant"), [("recover", "recovers"), ("resume", "resumes")])
def test_a_store_that_removes_its_folder_is_violated(
    tmp_path: Path, method: str, invariant: str
) -> None:
    """Whoever answers a torn file by deleting everything, the folder included, loses data."""
    body = f"""
    def {method}(self, root, run):
        if FLAG.exists():
            (root / 's').unlink()
            for path in root.iterdir(): path.unlink()
            root.rmdir()
    """
    with recorded(tmp_path, body) as store:
        store.misbehave()
        found = store.violation(store.at(CRASHED))
    assert found.invariant == invariant
    assert "removed the store's folder, or put something else in its place" in found.message


def test_a_workload_that_swaps_its_folder_is_told_where_to_live(tmp_path: Path) -> None:
    """Between two renames there is no folder, and what stands beside it cannot be restored."""
    body = """
    def swap(self, root, n):
        os.rename(root, f'{root}.old')
        root.mkdir()
        save(root / 's', n)
        os.remove(f'{root}.old/s')
        os.rmdir(f'{root}.old')
    def execute(self, root, run): run.step('one', lambda: self.swap(root, 1), then=1)
    """
    with pytest.raises(ConfigurationError, match=r'give such a store root / "store"'):
        run_body(tmp_path, body)


def test_judging_may_replace_the_folder(tmp_path: Path) -> None:
    """What observing and judging do to the files is thrown away, whatever it is."""
    body = """
    def check(self, root, evidence):
        for path in root.iterdir(): path.unlink()
        root.rmdir()
        root.symlink_to('/')
    """
    result = run_body(tmp_path, body)
    assert (result.findings, result.inconclusive) == ([], None)
    assert result.count("survived") == len(result.chosen) > 0


@pytest.mark.parametrize("method", ["observe", "recover"])
def test_a_fork_of_the_store_does_not_answer_for_it(tmp_path: Path, method: str) -> None:
    """A forked helper whose exception nobody catches ends; the phase itself has returned."""
    given = {"observe": "root", "recover": "root, run"}[method]
    body = f"""
    def {method}(self, {given}):
        read, write = os.pipe()
        if not os.fork():
            os.close(write)
            os.read(read, 1)  # until its parent has answered and ended
            raise RuntimeError('the helper failed')
        return load(root / 's')
    """
    result = run_body(tmp_path, body)
    assert (result.findings, result.inconclusive) == ([], None)
    assert result.count("survived") == len(result.chosen) > 0


def test_a_fork_of_the_store_cannot_use_run(tmp_path: Path) -> None:
    """Its promise would come from a process that no boundary kills: it is refused, and told."""
    body = """
    def execute(self, root, run):
        super().execute(root, run)
        pid = os.fork()
        if not pid:
            try: run.promise('kept', n=1)
            finally: os._exit(0)
        os.waitpid(pid, 0)
    def promised_kept(self, root, evidence, *, n): return True
    """
    with pytest.raises(ConfigurationError, match="in a process that the store forked"):
        run_body(tmp_path, body)


@pytest.mark.parametrize(("value", "said"), [("float('nan')", "is nan"), ("b'x'", "is b'x'")])
def test_an_observation_that_is_no_json_only_after_a_crash_is_violated(
    tmp_path: Path, value: str, said: str
) -> None:
    """Before the crash it was JSON: what a torn file gives is the store's fault."""
    body = f"""
    def observe(self, root): return {value} if (root / 's.new').exists() else load(root / 's')
    """
    finding = run_body(tmp_path, body).findings[0]
    assert (finding.kind, finding.violation.invariant) == ("violated", "observable")
    assert said in finding.violation.message


def test_asserts_of_checks_judge_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONOPTIMIZE takes asserts out, and a check that says nothing holds for everything."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    body = """
    def execute(self, root, run):
        two = lambda: [save(root / 's', n) for n in (1, 2)] and None
        run.step('two', two, then=2, between=ANYTHING)
    def check(self, root, evidence): assert evidence.observed != 1, 'half of it'
    """
    finding = only_finding(run_body(tmp_path, body))
    assert (finding.violation.invariant, finding.violation.message) == ("check", "half of it")


def test_a_step_that_resume_finds_done_is_acknowledged_after_it(tmp_path: Path) -> None:
    """It is skipped because it had happened; to the workload it returned all the same."""
    body = """
    def check(self, root, evidence):
        done = evidence.phase == 'recovered' or list(evidence.acknowledged) == ['save 1', 'save 2']
        yield Check('all done', done)
    """
    result = run_body(tmp_path, body)
    assert (result.findings, result.inconclusive) == ([], None)
    assert result.subjects["all done"] == 2 * len(result.chosen) > 0


def test_a_socket_in_the_root_is_the_campaigns_fault(tmp_path: Path) -> None:
    """It cannot be copied: other campaigns go on, and the message names what helps."""
    body = """
    def execute(self, root, run):
        import socket
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(root)
            listener.bind('s.sock')
            super().execute(root, run)
        os.unlink('s.sock')
    """
    with pytest.raises(ConfigurationError, match=r"it is a socket.*is named in `volatile`"):
        run_body(tmp_path, body)
    volatile = "volatile = ('*.sock',)"
    assert run_body(tmp_path, volatile, body).exit_code == 0


@pytest.mark.parametrize(
    "connect",
    [
        "db = sqlite3.connect(root / 'a.db'); db.isolation_level = None;"
        " db.row_factory = lambda c, row: {d[0]: x for d, x in zip(c.description, row)};"
        " db.text_factory = bytes",
        "db = apsw.Connection(str(root / 'a.db')); db.row_trace = lambda c, row: {'a': row}",
    ],
)
def test_settings_are_read_whatever_the_store_makes_of_rows(tmp_path: Path, connect: str) -> None:
    """A row that is a dict, as many stores want it, hides nothing of the SQLite in force."""
    body = f"""
    import apsw
    class Tested(Campaign):
        def connect(self, root):
            {connect}
            return db
        def prepare(self, root, run): self.connect(root).execute('create table t(a)')
        def execute(self, root, run):
            db = self.connect(root)
            db.execute('pragma synchronous = extra')
            run.step('one', lambda: db.execute('insert into t values (1)') and None)
            db.close()
        def observe(self, root):
            db = sqlite3.connect(root / 'a.db')
            found = db.execute('select * from t').fetchall()
            db.close()
            return found
    """
    with recorded(tmp_path, body) as store:
        assert store.recording.sqlite is not None
        settings = (store.recording.journal_mode, store.recording.synchronous)
    assert settings == ("delete", "extra")


def test_what_an_import_does_to_the_worker_changes_no_verdict(tmp_path: Path) -> None:
    """An ignored SIGCHLD makes the kernel reap children before the harness can."""
    body = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    class Tested(_Base): pass
    """
    result = run_body(tmp_path, body)
    assert (result.findings, result.exit_code) == ([], 0)


def test_a_process_that_an_import_starts_ends_with_the_worker(tmp_path: Path) -> None:
    """Nobody else would end it: a module that is only listed has no phase that could."""
    body = """
    note(str(subprocess.Popen(['sleep', '1000']).pid))
    class Tested(_Base): pass
    """
    found = written(tmp_path, body)
    with ZygoteClient((REPOSITORY, tmp_path)) as zygote:
        assert [one.name for one in zygote.list([found.module], tmp_path)] == ["tested"]
        (pid,) = (tmp_path / "notes").read_text().split()
        assert Path("/proc", pid).exists()
    assert not Path("/proc", pid).exists()


def test_a_check_that_changes_its_evidence_changes_no_verdict(tmp_path: Path) -> None:
    """Sorting what was observed, in place, neither hides a loss nor makes one."""
    body = """
    def prepare(self, root, run): save(root / 's', [0])
    def execute(self, root, run):
        for n in (1, 2): run.step(f'save {n}', lambda n=n: save(root / 's', [n, 0]), then=[n, 0])
    def check(self, root, evidence):
        evidence.observed.sort()
        for right in evidence.expected or (): right.clear()
    """
    result = run_body(tmp_path, body)
    assert (result.findings, result.inconclusive) == ([], None)
    losing = (
        body
        + """
    def recover(self, root, run): save(root / 's', sorted(load(root / 's')))
    """
    )
    assert run_body(tmp_path, losing).findings[0].violation.invariant == "step_atomicity"
