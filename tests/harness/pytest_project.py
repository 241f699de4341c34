"""
A project with campaigns in a folder, real pytest processes in it, and what came of them.

Every campaign refuses to be imported where pytest is: that pytest never imports one is proved by
each test that runs one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

RUN_SECONDS_MAX = 120
_MARK = "CRASHCONFORM_TEST_MARK"

HEAD = """\
import json, os, signal, sys, time
from pathlib import Path
from harness import Campaign, UNCHANGED
assert "pytest" not in sys.modules, "pytest imported a campaign"
HERE = Path(__file__).parent.parent

def save(path, value):
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)

class _Saving(Campaign):
    def prepare(self, root, run):
        save(root / "s.json", 0)
        with open(HERE / f"{type(self).__name__}.prepared", "a") as file:
            print(os.getppid(), file=file)
    def execute(self, root, run):
        for n in (1, 2):
            run.step(f"save {n}", lambda: save(root / "s.json", n))
    def observe(self, root):
        return json.loads((root / "s.json").read_text())
"""

CAMPAIGNS = {
    "good": "class Good(_Saving): pass",
    "torn": """
class Torn(_Saving):
    def execute(self, root, run):
        print("writing in place", flush=True)
        run.step("overwrite", lambda: (root / "s.json").write_text("7"))
""",
    "nothing": """
class Nothing(Campaign):
    def execute(self, root, run): run.step("work", lambda: None)
    def observe(self, root): return sorted(os.listdir(root))
""",
    "wrong": """
class Wrong(_Saving):
    def prepare(self, root, run): no_such_name
""",
    "lossy": """
class Lossy(_Saving):
    def execute(self, root, run):
        run.step("save 1", lambda: save(root / "s.json", 1), then=2)
""",
    "deadly": """
class Deadly(_Saving):
    def recover(self, root, run):
        if (root / "s.json.new").exists(): os.kill(os.getppid(), signal.SIGKILL)
""",
    "drifting": """
class Drifting(_Saving):
    def execute(self, root, run):
        prepared = len((HERE / "Drifting.prepared").read_text().splitlines())
        run.step("save", lambda: [save(root / "s.json", 1) for _ in range(1 + (prepared > 2))])
""",
    "hanging": """
class Hanging(_Saving):
    def recover(self, root, run):
        if (root / "s.json.new").exists():
            (HERE / "hanging.tmp").write_text(str(os.getppid()))
            (HERE / "hanging.tmp").rename(HERE / "hanging.pid")
            time.sleep(600)
""",
}

TABLE = '[tool.crashconform]\ncampaigns = ["campaigns"]\n'


@dataclass
class Case:
    """One test case of a JUnit file."""

    outcome: str = "passed"
    text: str = ""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass
class Ran:
    """What came of one pytest process."""

    status: int
    output: str
    cases: dict[str, Case]

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcomes by ``Class::name``."""
        return {name: case.outcome for name, case in self.cases.items()}

    @property
    def collected(self) -> list[str]:
        """The node ids that ``--collect-only -q`` printed."""
        return [line for line in self.output.splitlines() if re.match(r"\S+\.py::", line)]

    @property
    def summary(self) -> list[str]:
        """The plugin's lines."""
        return [line for line in self.output.splitlines() if line.startswith("crashconform: ")]


class Project:
    """A folder with campaigns, and pytest processes that can be told from all others."""

    def __init__(self, folder: Path, *names: str, table: str = TABLE) -> None:
        self.folder = folder
        self.workdir = folder / "work"
        self.workdir.mkdir()
        (folder / "pyproject.toml").write_text(table)
        (folder / "campaigns").mkdir()
        guard = 'import sys\nassert "pytest" not in sys.modules, "pytest imported a campaign"\n'
        (folder / "campaigns" / "__init__.py").write_text(guard)
        for name in names:
            self.write(f"campaigns/{name}.py", HEAD + CAMPAIGNS[name])
        self._options = [f"--crash-workdir={self.workdir}"] if "crashconform" in table else []
        self._mark = f"{_MARK}={uuid.uuid4().hex}".encode()

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start pytest in the project, in a session of its own."""
        name, _, value = self._mark.decode().partition("=")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV"))}
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *self._options, *arguments],
            cwd=self.folder,
            env={**kept, name: value, "COLUMNS": "500", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> Ran:
        """Run pytest to its end, and demand that nothing is left behind."""
        file = self.folder / "junit.xml"
        process = self.start(f"--junitxml={file}", *arguments, **environment)
        with process:
            output, _ = process.communicate(timeout=RUN_SECONDS_MAX)
        assert (self.processes(), self.leftovers()) == ([], [])
        cases = _cases(file) if file.exists() else {}
        file.unlink(missing_ok=True)
        return Ran(process.returncode, output, cases)

    def processes(self) -> list[int]:
        """Return the processes that this project's pytest processes started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def leftovers(self) -> list[str]:
        """Return what stands in the work folder."""
        return sorted(entry.name for entry in self.workdir.iterdir())

    def prepared(self, name: str) -> list[str]:
        """Return the zygotes that prepared a campaign, one for each time."""
        return (self.folder / f"{name}.prepared").read_text().splitlines()


def _cases(file: Path) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for element in ET.parse(file).iter("testcase"):
        owner = element.get("classname", "").rpartition(".")[2]
        case = cases[f"{owner}::{element.get('name')}"] = Case()
        for kind in ("failure", "error", "skipped"):
            found = element.find(kind)
            if found is not None:
                case.outcome, case.text = kind, f"{found.get('message')}\n{found.text}"
        case.properties = {x.get("name", ""): x.get("value", "") for x in element.iter("property")}
    return cases
