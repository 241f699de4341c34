"""The pages about the runtime: the keys of its two JSON documents, and the output they show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from metabolism_held_world import NOW, HeldWorld, Run, dead, several

from store.metabolism.fixtures import evaluate_fixture_dir
from store.metabolism.reconciliation.caveats import CaveatKind
from store.metabolism.reconciliation.log_evidence import LogSeen

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "metabolism.md").read_text(encoding="utf-8")
FIXTURES = (DOCS / "metabolism-fixtures.md").read_text(encoding="utf-8")


def _named(page: str, section: str, head: str) -> list[str]:
    """Return the names in the first column of the table in *section* that begins with *head*."""
    _, _, text = page.partition(f"\n{section}\n")
    _, _, table = text.partition(f"\n| {head} |")
    assert table, f"{section} has no table {head!r}"
    rows = re.findall(r"^\| (`.*?) \|", table.partition("\n\n")[0], re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_page_has_every_key_of_the_commands_json(run: Run, world: HeldWorld) -> None:
    """The tables name the keys of the document, of a finding and of a warning, and no others."""
    several(world)
    database = dead(world)
    document = json.loads(run("reconcile", database, "--now", NOW - 10**12, "--json").out)
    assert sorted(_named(PAGE, "### Its JSON", "key")) == sorted(document)
    finding = document["findings"][0]
    assert sorted(_named(PAGE, "### Its JSON", "key of a finding")) == sorted(finding)
    [warning] = document["warnings"]
    assert [f"`{key}`" in PAGE for key in warning] == [True, True]
    assert sorted(_named(PAGE, "## Reconciliation", "warning")) == sorted(CaveatKind)
    assert [seen for seen in LogSeen if f"`{seen}`" not in PAGE] == []


def test_the_page_has_every_key_of_the_fixture_record(tmp_path: Path) -> None:
    """The tables name the keys of the record and of its cases, inner ones too, and no others."""
    (tmp_path / "a.json").write_text(re.findall(r"(?s)```json\n(.*?)```", FIXTURES)[0])
    record = evaluate_fixture_dir(tmp_path)
    [case] = record["cases"]
    assert sorted(_named(FIXTURES, "## The record", "key of the record")) == sorted(record)
    assert sorted(_named(FIXTURES, "## The record", "key of a case")) == sorted(case)
    _, _, section = FIXTURES.partition("\n## The record\n")
    inner: list[dict[str, Any]] = [
        record["counts"],
        case["projection"],
        case["reconciliation"],
        case["reconciliation"]["findings"][0],
    ]
    missing = [key for one in inner for key in one if f"`{key}`" not in section]
    assert missing == []
    assert all(f"`{key}`" in section for key in ("place", "expected", "observed"))


def test_the_output_on_the_page_is_what_is_printed(run: Run, world: HeldWorld) -> None:
    """Each shown line is printed, in that order; only where there are dots are lines left out."""
    several(world)
    [console] = re.findall(r"(?s)```console\n\$ crashconform metabolism reconcile (.*?)```", PAGE)
    options, *shown = console.splitlines()
    answer = run("reconcile", dead(world), *options.split()[1:])
    pieces = "\n".join(shown).split("\n...")
    at = 0
    for piece in pieces:
        place = answer.out.find(piece.strip("\n"), at)
        assert place >= 0, piece
        assert at or place == 0
        at = place + len(piece.strip("\n"))
