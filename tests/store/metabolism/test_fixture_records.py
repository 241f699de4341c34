"""The shipped cases: what each shows, in a record of the same bytes everywhere, leaving nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from store import canonical
from store.metabolism import fixtures
from store.metabolism.fixtures import evaluate_case, evaluate_fixture_dir
from store.metabolism.fixtures.cases import OPERATIONS, parse_case
from store.metabolism.fixtures.checks import FixtureError, Reader
from store.metabolism.fixtures.expectations import THE_END

PACKAGE = Path(fixtures.__file__).parent
SHIPPED = PACKAGE / "shipped"
PINNED = Path(__file__).with_name("shipped_record.json")
REPOSITORY = PACKAGE.parents[2]

COMMAND = [sys.executable, "-m", "store.metabolism", "evaluate-fixtures", "--json", "--input"]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Return the record of the shipped cases."""
    return evaluate_fixture_dir(SHIPPED)


def case(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the record shows of one case, which passed."""
    [found] = [found for found in record["cases"] if found["case"] == name]
    assert (found["observed_status"], found["mismatches"]) == ("pass", [])
    return dict(found)


def rules(found: dict[str, Any]) -> list[str]:
    """Return the rules of a case's findings, in their order."""
    reconciliation = found["reconciliation"]
    counted = {rule: count for rule, count in reconciliation["rule_counts"].items() if count}
    listed = [finding["rule"] for finding in reconciliation["findings"]]
    assert counted == {rule: listed.count(rule) for rule in listed}
    assert ("needs_review" if listed else "healthy") == reconciliation["status"]
    return listed


def source(name: str) -> dict[str, Any]:
    """Return a shipped fixture as it was written."""
    return dict(json.loads((SHIPPED / f"{name}.json").read_bytes()))


def said(name: str, operation: str, key: str) -> list[Any]:
    """Return what each step of *operation* says under *key*, None where it is silent."""
    return [step.get(key) for step in source(name)["steps"] if step["do"] == operation]


def test_the_record_says_what_it_is_of(record: dict[str, Any]) -> None:
    """MR-043: the record names the runtime, its versions, and how far its claim goes."""
    assert record["organ_id"] == "engine_room_metabolism_runtime"
    assert (record["record_version"], record["schema_version"]) == (1, 1)
    assert record["claim_ceiling"]
    assert record["scope_boundaries"]


def test_the_shipped_cases_pass(record: dict[str, Any]) -> None:
    """MR-036: the five named cases and those beyond them expect pass and show it, and three of
    the five force a finding."""
    named = [
        "queue_recovery",
        "blackboard_projection",
        "running_job_no_run_row",
        "finalized_run_running_job",
        "stale_log",
    ]
    assert sum(bool(rules(case(record, name))) for name in named) == 3
    assert (record["status"], record["reasons"]) == ("pass", [])
    assert {"pass"} == {found["expected_status"] for found in record["cases"]}
    files = [f"{found['case']}.json" for found in record["cases"]]
    assert files == sorted(path.name for path in SHIPPED.iterdir())
    assert record["counts"] == {"cases": len(files), "met": len(files), "missed": 0}


def test_queue_recovery(record: dict[str, Any]) -> None:
    """MR-037: of one key twice the second is refused; a claim that has lapsed already is given
    back, once, and its job can be claimed again."""
    name = "queue_recovery"
    found = case(record, name)
    assert (rules(found), found["requeued_count"]) == ([], 1)
    assert len(set(said(name, "enqueue_job", "idempotency_key"))) == 1
    states = [returned["inserted"] for returned in said(name, "enqueue_job", "returns")]
    assert states == [True, False]
    assert said(name, "claim_next_job", "lease_seconds") == [-1]
    assert said(name, "requeue_expired_jobs", "returns") == [1, 0]
    assert source(name)["expect"]["jobs"] == {"job": "recoverable"}


def test_blackboard_projection(record: dict[str, Any]) -> None:
    """MR-038: of one claim, asserted and contradicted, none is active and both events are kept."""
    found = case(record, "blackboard_projection")
    expected = {"active_count": 0, "contradiction_count": 1, "event_count": 2}
    assert expected == found["projection"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running_job_no_run_row", ["running_job_no_run_row"]),
        ("torn_start", ["running_job_no_run_row"]),
    ],
)
def test_running_job_no_run_row(record: dict[str, Any], name: str, expected: list[str]) -> None:
    """MR-039: a job that runs without a run is counted; it is not given back, lapsed or not."""
    found = case(record, name)
    assert (rules(found), found["requeued_count"]) == (expected, 0)
    assert said(name, "start_run", "do") == []


@pytest.mark.parametrize("name", ["finalized_run_running_job", "torn_completion"])
def test_finalized_run_running_job(record: dict[str, Any], name: str) -> None:
    """MR-040: a run that ended without its job is found; it is not given back, lapsed or not."""
    found = case(record, name)
    assert (rules(found), found["requeued_count"]) == (["run_finalized_but_job_running"], 0)
    assert True not in said(name, "complete_run", "finalize_job")


def test_stale_log(record: dict[str, Any]) -> None:
    """MR-041: a log that is dated 1200 seconds back is stale under a threshold of 60 seconds."""
    assert rules(case(record, "stale_log")) == ["running_job_stale_launch_log"]
    assert source("stale_log")["stale_after_seconds"] == 60
    assert said("stale_log", "backdate_log", "seconds")[-1] == 1200


def test_what_the_five_cases_leave_out(record: dict[str, Any]) -> None:
    """MR-008, MR-027: the missing log, the healthy moments, and several findings worst first."""
    assert rules(case(record, "missing_log")) == ["running_job_missing_launch_log"]
    for name in (
        "claimed_job_without_run",
        "free_key_after_terminal_job",
        "newest_run_among_several",
    ):
        assert rules(case(record, name)) == []
    assert rules(case(record, "several_findings")) == [
        "running_job_no_run_row",
        "run_finalized_but_job_running",
        "running_job_stale_launch_log",
    ]


def test_findings_are_named_and_left_to_an_operator(record: dict[str, Any]) -> None:
    """MR-028, MR-029: the evidence has each finding with its id, and none that is repaired."""
    found = [one for found in record["cases"] for one in found["reconciliation"]["findings"]]
    assert len(found) >= 9
    assert {"operator_review_required"} == {finding["action"] for finding in found}
    assert all(len(finding["finding_id"]) == 16 for finding in found)
    assert all(finding["expected"] and finding["observed"] for finding in found)


def test_the_shipped_record_is_pinned(record: dict[str, Any]) -> None:
    """The record of the shipped cases has the bytes that are kept beside this test, and is within
    the domain of canonical JSON."""
    printed = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert PINNED.read_text(encoding="utf-8") == printed, (
        "If the new record is right, keep it: python -m store.metabolism evaluate-fixtures --input "
        "store/metabolism/fixtures/shipped --json > tests/store/metabolism/shipped_record.json"
    )
    assert canonical.decode(canonical.encode(record)) == record


def run(
    command: list[str], *, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in *folder*, with these variables in its environment."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_the_record_is_the_same_everywhere(tmp_path: Path) -> None:
    """MR-035: the command prints the pinned bytes and exits with 0, whatever the folders, the time
    zone, the locale, the hash seed and the times of the files are."""
    printed = []
    for name, zone, seed, language in (
        ("a", "UTC", "0", "C"),
        ("b b", "Asia/Tokyo", "7", "C.UTF-8"),
    ):
        (tmp_path / name / "scratch").mkdir(parents=True)
        copy = shutil.copytree(SHIPPED, tmp_path / name / "input")
        for path in copy.iterdir():
            os.utime(path, (0, 0))
        ended = run(
            [*COMMAND, str(copy)],
            folder=tmp_path / name,
            TMPDIR=str(tmp_path / name / "scratch"),
            TZ=zone,
            PYTHONHASHSEED=seed,
            LC_ALL=language,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert list((tmp_path / name / "scratch").iterdir()) == []
        printed.append(ended.stdout)
    assert [PINNED.read_text(encoding="utf-8")] * 2 == printed
    assert str(tmp_path) not in printed[0]


def test_no_module_of_the_fixtures_reads_a_clock() -> None:
    """What plays and records cases imports nothing that knows the time of day."""
    modules = sorted(PACKAGE.glob("*.py"))
    assert len(modules) == 7
    for module in modules:
        imported = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
            for name in _imported(node)
        }
        assert imported & {"time", "datetime", "random", "uuid"} == set(), module.name


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "code"),
    [("[]", 0), ('[{"do": "enqueue_job", "kind": "", "idempotency_key": "k"}]', 1), ("[{}]", 2)],
)
def test_the_command_ends_as_the_record_says(tmp_path: Path, steps: str, code: int) -> None:
    """MR-035: exit code 0 for pass, 1 for fail with the whole record, 2 for what is no fixture."""
    (tmp_path / "a.json").write_text(
        '{"case": "a", "about": "A case.", "expected_status": "pass", "steps": '
        f'{steps}, "expect": {{"status": "healthy"}}}}'
    )
    ended = run([*COMMAND, str(tmp_path)], folder=tmp_path)
    assert ended.returncode == code
    if code == 2:
        assert ended.stdout == ""
        assert "a.json: steps[0].do: this key is missing" in ended.stderr
    else:
        assert json.loads(ended.stdout)["status"] == ("fail" if code else "pass")


def test_the_page_has_every_operation_and_expectation() -> None:
    """The page about fixtures names each operation in a row with its arguments, each expectation,
    and an example that holds."""
    text = (REPOSITORY / "docs" / "metabolism-fixtures.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert set(OPERATIONS) <= set(table)
    for name, operation in OPERATIONS.items():
        arguments = table[name].partition("|")[0]
        assert set(re.findall(r"`(\w+)`", arguments)) == set(operation.takes), name
        needed = re.sub(r"\[.*?\]", "", arguments)
        assert set(re.findall(r"`(\w+)`", needed)) == set(operation.needs), name
    with pytest.raises(FixtureError) as caught:
        THE_END(Reader("page"), "", {"": 0})
    expectations = caught.value.problem.partition("expected ")[2].rstrip(".").split(", ")
    assert len(expectations) == 7
    assert set(expectations) <= set(table)


@pytest.mark.parametrize("name", [name for name, one in OPERATIONS.items() if one.returns])
def test_the_page_has_what_each_operation_returns(name: str) -> None:
    """The page names, for each operation that returns something, the keys that can be stated."""
    text = (REPOSITORY / "docs" / "metabolism-fixtures.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    shown = table[name].split(" | ")[-1]
    if other := re.fullmatch(r"as `(\w+)`", shown):
        shown = table[other[1]].split(" | ")[-1]
    returns = OPERATIONS[name].returns
    assert returns is not None
    with pytest.raises(FixtureError) as caught:
        returns(Reader("page"), "", {"?": 0})
    stated = set(re.findall(r"`(\w+)`", shown)) - {"null"}
    known = caught.value.problem.partition("expected ")[2].rstrip(".").split(", ")
    is_object = caught.value.problem.startswith("this key is unknown")
    assert stated == (set(known) if is_object else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.iterdir()))
def test_any_value_anywhere_is_refused_or_played(name: str, tmp_path: Path) -> None:
    """Wherever a shipped fixture holds another value it is refused as a fixture or can be played;
    nothing else happens."""
    refused = played = 0
    for place in _places(source(name)):
        for value in (None, -1, 2**53 - 1, "", "job", [], {}):
            try:
                changed = parse_case(_with(source(name), place, value), file="changed.json")
            except FixtureError:
                refused += 1
            else:
                canonical.encode(evaluate_case(changed, scratch=tmp_path).to_json())
                played += 1
    assert refused > 100
    assert played > 10


def _places(value: Any) -> list[tuple[Any, ...]]:
    """Return the place of every value within *value*, its own included, as keys and indexes."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, (dict, list)):
        inner = list(value.items() if isinstance(value, dict) else enumerate(value))
    return [(), *((key, *rest) for key, item in inner for rest in _places(item))]


def _with(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    document[place[0]] = _with(document[place[0]], place[1:], value)
    return document


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    """The page's example is a fixture whose expectations hold."""
    text = (REPOSITORY / "docs" / "metabolism-fixtures.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "example.json").write_text(example)
    assert evaluate_fixture_dir(tmp_path)["status"] == "pass"


STOPPED = """
import os, signal, sys
from pathlib import Path
import apsw
from store.metabolism.fixtures import evaluate_fixture_dir

count = 0

def stop(connection):
    global count
    count += 1
    if count == 8:
        print(len([path for path in Path(os.environ["TMPDIR"]).rglob("*.sqlite3")]), flush=True)
        {stop}

apsw.connection_hooks.append(stop)
evaluate_fixture_dir(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("raise RuntimeError", 1),
        ("raise apsw.FullError", 1),
    ],
)
def test_nothing_is_left_of_a_case_that_was_stopped(tmp_path: Path, stop: str, code: int) -> None:
    """MR-033: the scratch folder is removed after Ctrl-C and after any error in the middle."""
    ended = run(
        [sys.executable, "-c", STOPPED.format(stop=stop), str(SHIPPED)],
        folder=tmp_path,
        TMPDIR=str(tmp_path),
    )
    assert (ended.stdout, ended.returncode) == ("1\n", code), ended.stderr
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
from pathlib import Path
from store.metabolism.fixtures.cases import parse_case
from store.metabolism.fixtures import evaluate_case

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
log = {"log_path": "a.log"}
line = {"do": "append_log", **log, "line": "x" * 1_000_000}
case = {"case": "a", "about": "A case.", "expected_status": "fail", "steps": [], "expect": {}}
case |= {"steps": [{"do": "create_log", **log}, line], "expect": {"status": "needs_review"}}
print(evaluate_case(parse_case(case, file="a.json"), scratch=Path(sys.argv[2])).is_met)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size_max", "is_played"), [(1_000, 0), (500_000, 0), (2_000_000, 1)])
def test_a_full_disk_is_no_failed_case(tmp_path: Path, size_max: int, is_played: int) -> None:
    """Where a database or a log finds no room the case was not played, and nothing is claimed."""
    ended = run([sys.executable, "-c", FULL, str(size_max), str(tmp_path)], folder=tmp_path)
    if is_played:
        assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    else:
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "ScratchUnusable: case 'a' could not be played" in ended.stderr
    assert list(tmp_path.iterdir()) == []
