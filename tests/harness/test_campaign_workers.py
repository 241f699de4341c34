"""Several workers explore one recording: the same verdicts, whatever their roots are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import REPOSITORY, Quiet, run_body, written

from harness.runner import Options, choose, exit_code, run_campaign, run_campaigns
from harness.workdir import Workdir

REMEMBERING = """
def prepare(self, root, run):
    save(root / 's', [str(root), 0]); run.promise('at', path=str(root / 's'))
def execute(self, root, run):
    for n in (1, 2):
        run.step(f'save {n}', lambda n=n: save(root / 's', [str(root), n]), then=[str(root), n])
        run.promise('at', path=str(root / 's'))
def promised_at(self, root, evidence, *, path): return Path(path).exists()
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_stores_that_remember_their_path_are_the_same_in_every_worker(
    tmp_path: Path, jobs: int
) -> None:
    """Absolute paths in observations, promises and folders of any name make no difference."""
    folder = tmp_path / "wörk folder é"
    folder.mkdir()
    found = written(tmp_path, REMEMBERING)
    options = Options(jobs=jobs, import_path=(REPOSITORY, tmp_path))
    with Workdir.choose(folder, max(2, jobs)) as workdir:
        result = run_campaign(found, workdir, options, Quiet())
    assert (result.findings, result.inconclusive) == ([], None)
    assert [verdict.boundary for verdict in result.verdicts] == list(range(1, 16))
    assert result.count("survived") == 15


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_that_look_like_the_word_for_the_root_are_left_alone(
    tmp_path: Path, jobs: int
) -> None:
    """A store of XML holds `<root>` itself, in observations and in facts, beside its real path."""
    body = """
    def prepare(self, root, run): save(root / 's', '<root/>')
    def execute(self, root, run):
        for text in ('<root></root>', f'<root>{root}</root>', '<root2>'):
            run.step(f'save {text}', lambda: save(root / 's', text), then=text)
            run.promise('saved', text=text)
    def promised_saved(self, root, evidence, *, text): return text.startswith('<root')
    """
    result = run_body(tmp_path, body, jobs=jobs)
    assert (result.findings, result.inconclusive) == ([], None)
    assert result.count("survived") == len(result.chosen) == 22


def test_a_worker_whose_execution_differs_makes_the_run_inconclusive(tmp_path: Path) -> None:
    """The third worker, which records nothing, compares its own first execution too."""
    body = """
    def execute(self, root, run):
        if root.parent.name == 'w02': save(root / 'other', 1)
        run.step('one', lambda: save(root / 's', 1), then=1)
    """
    result = run_body(tmp_path, body, jobs=3)
    assert result.inconclusive is not None
    assert "boundary 1 was recorded as 'before step one' and is now 'before write other.new'" in (
        result.inconclusive
    )
    assert (result.verdicts, result.exit_code) == ([], 5)


def test_a_worker_whose_fixture_differs_makes_the_run_inconclusive(tmp_path: Path) -> None:
    """A fixture that only one worker has would be judged against another's."""
    body = """
    def prepare(self, root, run): save(root / 's', int(root.parent.name == 'w02'))
    """
    result = run_body(tmp_path, body, jobs=3)
    assert result.inconclusive is not None
    assert "the observation of the fixture differs from run to run" in result.inconclusive


def test_shards_share_every_boundary_out_once(tmp_path: Path) -> None:
    """All shards together explore each boundary once; the subset is a part of the whole."""
    result = run_body(tmp_path, "pass")
    assert result.recording is not None
    whole = choose(result.recording, Options())
    shards = [choose(result.recording, Options(shard=(n, 4))) for n in range(1, 5)]
    assert whole == list(range(1, len(result.recording.lines) + 1))
    assert sorted(number for shard in shards for number in shard) == whole
    assert set(choose(result.recording, Options(is_representative=True))) < set(whole)


def test_the_exit_code_of_several_campaigns_is_the_worst(tmp_path: Path) -> None:
    """Violated goes before inconclusive, and inconclusive before survived."""
    bodies = {
        "right": "pass",
        "blind": "def execute(self, root, run): run.step('x', lambda: save(root/'s', 0), then=0)",
        "wrong": "def recover(self, root, run): raise ValueError('never')",
    }
    found = {}
    for name, body in bodies.items():
        folder = tmp_path / name
        folder.mkdir()
        found[name] = written(folder, body)
    options = Options(import_path=(REPOSITORY,))
    with Workdir.choose(None, 2) as workdir:
        right, blind, wrong = run_campaigns(found.values(), workdir, options, Quiet())
    codes = [result.exit_code for result in (right, blind, wrong)]
    assert codes == [0, 5, 1]
    assert exit_code([right, blind, wrong]) == 1
    assert exit_code([right, blind]) == 5
    assert exit_code([right]) == 0
    assert exit_code([]) == 5
