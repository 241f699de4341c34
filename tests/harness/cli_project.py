"""A small project with campaigns of every verdict, and the command run in it as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAVING = """
import json, os, sqlite3, time
from contextlib import closing
from harness import ANYTHING, UNCHANGED, Campaign, Check

def save(path, value):
    with open(f"{path}.new", "w") as f:
        json.dump(value, f); f.flush(); os.fsync(f.fileno())
    os.replace(f"{path}.new", path)

def connect(root):
    return sqlite3.connect(root / "a.db", isolation_level=None)

def rows(root, sql):
    with closing(connect(root)) as c:
        return [list(r) for r in c.execute(sql)]
"""

SETTINGS = """
class Settings(Campaign):
    '''Settings are replaced as a whole.'''
    def prepare(self, root, run): save(root / "s.json", 0)
    def execute(self, root, run):
        for n in (1, 2): run.step(f"save {n}", lambda: save(root / "s.json", n), then=n)
    def observe(self, root): return json.loads((root / "s.json").read_text())
"""

QUEUE = """
class Queue(Campaign):
    delivery = {"handled": "at-least-once"}
    def prepare(self, root, run):
        connect(root).execute("create table job(id integer primary key, state text)")
    def work(self, c, run):
        while got := c.execute("update job set state='taken' where id=(select min(id) from job"
                               " where state='ready') returning id").fetchall():
            run.effect("handled", id=got[0][0])
            c.execute("update job set state='done' where id=?", got[0])
    def execute(self, root, run):
        with closing(connect(root)) as c:
            for n in (1, 2):
                run.step(f"put {n}", lambda: c.execute("insert into job values(?, 'ready')", (n,)))
                run.promise("handled", id=n)
            run.step("work", lambda: self.work(c, run), then={"1": "done", "2": "done"},
                     between=ANYTHING)
    def recover(self, root, run):
        connect(root).execute("update job set state='ready' where state='taken'")
    def observe(self, root): return {str(i): s for i, s in rows(root, "select id, state from job")}
    def after_recovery(self, expected):
        return {i: "ready" if s == "taken" else s for i, s in expected.items()}
"""

MIGRATION = """
class Migration(Campaign):
    def prepare(self, root, run):
        connect(root).executescript(
            "create table v(n); insert into v values(1); create table t(a)")
    def migrate(self, root):
        with closing(connect(root)) as c:
            if c.execute("select n from v").fetchone() == (1,):
                print("migrating")
                c.execute("alter table t add column b"); c.execute("update v set n=2")
    def execute(self, root, run):
        run.step("migrate", lambda: self.migrate(root), then=UNCHANGED)
    def recover(self, root, run): self.migrate(root)
    def observe(self, root): return rows(root, "select * from t")
    def check(self, root, evidence):
        yield Check("migrated", rows(root, "select n from v") == [[2]])
"""

HANGING = (
    SETTINGS.replace("Settings", "Hanging")
    + """
    def recover(self, root, run):
        if (root / "s.json.new").exists(): time.sleep(600)
"""
)

SLOW = (
    SETTINGS.replace("Settings", "Slow").replace("(1, 2)", "range(1, 12)")
    + """
    def recover(self, root, run): time.sleep(0.05)
"""
)

LITTLE = SETTINGS.replace("Settings", "Little").replace("(1, 2)", "(1,)")
"""It has 9 boundaries."""

LOST = """
class Lost(Campaign):
    def prepare(self, root, run): save(root / "s.json", 0)
    def take(self, root):
        save(root / "s.json", 1)
        return object()
    def execute(self, root, run):
        taken = run.step("take", lambda: self.take(root), then=1)
        run.step("use", lambda: save(root / "s.json", 1 + bool(str(taken))), then=2)
    def observe(self, root): return json.loads((root / "s.json").read_text())
"""
"""What it takes into its second step is lost with the process."""

NOTHING = """
class Nothing(Campaign):
    def execute(self, root, run): run.step("work", lambda: None)
    def observe(self, root): return sorted(os.listdir(root))
"""

STEPLESS = """
class Stepless(Campaign):
    def execute(self, root, run): save(root / "s.json", 1)
    def observe(self, root): return None
"""

SQL_FREE_LOSS = """
class Loss(Campaign):
    def prepare(self, root, run): save(root / "s.json", 0)
    def execute(self, root, run):
        with open(root / "late.json", "w") as f:
            run.step("write", lambda: f.write("1"), then=1)
    def observe(self, root):
        late = root / "late.json"
        return json.loads(late.read_text() or "0") if late.exists() else 0
"""


@dataclass
class Project:
    """
    A folder with pyproject.toml and campaigns.

    Attributes:
        marker: Stands in the environment of every process of this project's runs.
    """

    folder: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)

    def add(self, path: str, *sources: str) -> Path:
        """Write a module of campaigns below ``campaigns/``."""
        file = self.folder / "campaigns" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SAVING + "".join(sources))
        return file

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a run."""
        return {**os.environ, "CRASHCONFORM_TEST_MARKER": self.marker, "COLUMNS": "200"}

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start the command and return its process."""
        settings: dict[str, Any] = {
            "cwd": self.folder,
            "env": self.environment,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **options,
        }
        return subprocess.Popen([sys.executable, "-m", "harness.cli", *arguments], **settings)

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        with self.start(*arguments, **options) as process:
            try:
                out, err = process.communicate(timeout=120)
            finally:
                process.kill()
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def report(self, *arguments: str, **options: Any) -> tuple[int, dict[str, Any]]:
        """Run ``run`` with a JSON report; return exit code and report."""
        done = self.run("run", *arguments, "--json", "report.json", **options)
        file = self.folder / "report.json"
        assert file.exists(), done.stderr
        report: dict[str, Any] = json.loads(file.read_text())
        assert report["exit"] == done.returncode
        return done.returncode, report

    def processes(self) -> list[int]:
        """Return the pids of every living process of this project's runs."""
        return list(_processes_with(self.marker.encode()))


def _processes_with(marker: bytes) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
                is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if marker in environment and not is_zombie:
                yield int(folder.name)


def make_project(folder: Path) -> Project:
    """Make a project with the table and a campaign that survives."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text('[tool.crashconform]\ncampaigns = ["./campaigns"]\n')
    project = Project(folder)
    project.add("settings.py", SETTINGS)
    return project
