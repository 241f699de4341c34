"""What the default resume does with each step, and what carries on from phase to phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Recorded, recorded, run_body, written

from harness.errors import ConfigurationError
from harness.run import Lost

STEPS = """
def act(self, root, name, value):
    note(f'{name}')
    save(root / 's', value)
    return name
def execute(self, root, run):
    note('execute')
    for name, value, then in STEPS:
        note(f"={run.step(name, lambda: self.act(root, name, value), then=then, retry=RETRY)}")
def complete(self, root, evidence): return True
"""

CHANGING = "STEPS = (('one', 1, 1), ('two', 2, 2), ('three', 3, 3))"
UNCHANGING = "STEPS = (('one', 1, 1), ('two', 1, UNCHANGED), ('three', 3, 3))"


def resumed(store: Recorded, boundary: int) -> list[str]:
    """Crash there and return what the resumed execution noted, results with a ``=``."""
    store.notes()
    verdict = store.verdict(boundary)
    assert verdict.kind == "survived", verdict.violation
    notes = store.notes()
    starts = [n for n, text in enumerate(notes) if text == "execute"]
    return notes[starts[1] + 1 :]


RUN_TWO = ["=one", "two", "=two", "three", "=three"]
SKIP_TWO = ["=one", "=two", "three", "=three"]


@pytest.mark.parametrize(
    ("retry", "steps", "place", "expected"),
    [
        # acknowledged: skipped, whatever it says
        ("unless_present", CHANGING, "after step two", SKIP_TWO),
        ("always", CHANGING, "after step two", SKIP_TWO),
        ("never", CHANGING, "after step two", SKIP_TWO),
        # in flight, and its effect is seen
        ("unless_present", CHANGING, "after rename s.new s", SKIP_TWO),
        ("always", CHANGING, "after rename s.new s", RUN_TWO),
        ("never", CHANGING, "after rename s.new s", SKIP_TWO),
        # in flight, and its effect is not seen
        ("unless_present", CHANGING, "before rename s.new s", RUN_TWO),
        ("always", CHANGING, "before rename s.new s", RUN_TWO),
        ("never", CHANGING, "before rename s.new s", SKIP_TWO),
        # in flight, and its effect cannot be seen, since it changes nothing
        ("unless_present", UNCHANGING, "after rename s.new s", RUN_TWO),
        ("always", UNCHANGING, "after rename s.new s", RUN_TWO),
        ("never", UNCHANGING, "after rename s.new s", SKIP_TWO),
        # not begun: run
        ("unless_present", CHANGING, "before step two", RUN_TWO),
        ("always", CHANGING, "before step two", RUN_TWO),
        ("never", CHANGING, "before step two", RUN_TWO),
    ],
)
def test_the_default_resume_follows_its_table(
    tmp_path: Path, retry: str, steps: str, place: str, expected: list[str]
) -> None:
    """Each row and column of the table; a skipped step returns the recorded result."""
    body = f"{STEPS}\nRETRY = '{retry}'\n{steps}\n".replace("in STEPS", "in self.STEPS").replace(
        "retry=RETRY", "retry=self.RETRY"
    )
    with recorded(tmp_path, body) as store:
        two = next(step for step in store.recording.steps if step.label == "two")
        inside = range(two.begin, two.end + 1)
        boundary = next(n for n in inside if store.recording.lines[n - 1] == place)
        assert resumed(store, boundary) == expected


USES = {
    "attribute": lambda x: x.name,
    "class": lambda x: isinstance(x, dict),
    "set": lambda x: setattr(x, "a", 1),
    "delete": lambda x: delattr(x, "a"),
    "call": lambda x: x(),
    "item": lambda x: x[0],
    "iteration": lambda x: list(x),
    "next": lambda x: next(x),
    "length": lambda x: len(x),
    "truth": lambda x: bool(x),
    "membership": lambda x: 1 in x,
    "with": lambda x: x.__enter__(),
    "text": lambda x: str(x),
    "representation": lambda x: repr(x),
    "format": lambda x: f"{x}",
    "percent": lambda x: "%s" % x,  # noqa: UP031 - the operator is what is tried
    "bytes": lambda x: bytes(x),
    "path": lambda x: Path(x),
    "integer": lambda x: int(x),
    "float": lambda x: float(x),
    "index": lambda x: [0, 1][x],
    "sum": lambda x: x + 1,
    "right sum": lambda x: "a" + x,
    "product": lambda x: 2 * x,
    "or": lambda x: x | {},
    "negative": lambda x: -x,
    "equality": lambda x: x == 1,
    "inequality": lambda x: x != 1,
    "order": lambda x: x < 1,
    "hash": lambda x: {x},
    "rounding": lambda x: round(x),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_lost_result_is_refused(use: str) -> None:
    """A guard that died with the process cannot be used by mistake in any way."""
    with pytest.raises(ConfigurationError, match="the result of step 'lock' was used") as caught:
        USES[use](Lost("lock"))
    assert "write resume()" in str(caught.value)


@pytest.mark.parametrize("wrapped", ["claim", "[claim]", "{'claim': (claim,)}"])
def test_a_named_tuple_is_lost(tmp_path: Path, wrapped: str) -> None:
    """What would come back as a list without its names is lost, which is told as the campaign's."""
    body = f"""
    def execute(self, root, run):
        from collections import namedtuple
        claim = namedtuple('Claim', 'id owner')(1, 'me')
        got = run.step('one', lambda: (save(root / 's', 1), {wrapped})[1], then=1)
        run.step('two', lambda: (got == claim, save(root / 's', 2)) and None, then=2)
    """
    with pytest.raises(ConfigurationError, match="the result of step 'one' was used") as caught:
        run_body(tmp_path, body)
    assert "write resume()" in str(caught.value)


def test_a_lost_result_may_be_passed_on(tmp_path: Path) -> None:
    """A result that is no JSON and is not used does no harm."""
    body = """
    def execute(self, root, run):
        guard = run.step('one', lambda: save(root / 's', 1) or object(), then=1)
        run.step('two', lambda: (guard, save(root / 's', 2)) and None, then=2)
    """
    assert run_body(tmp_path, body).exit_code == 0


CARRIED = """
def name(self, run, phase): note(f'{phase} {run.identifier("id")} {run.clock()} {run.now_ns}')
def prepare(self, root, run): save(root / 's', 0); self.name(run, 'prepare')
def execute(self, root, run):
    self.name(run, 'execute'); run.sleep(1.5)
    run.step('one', lambda: save(root / 's', 1), then=1)
    self.name(run, 'execute')
def recover(self, root, run): self.name(run, 'recover')
def check(self, root, evidence): note(f'check - {evidence.now_ns} {evidence.now_ns}')
def resume(self, root, run): save(root / 's', 1); self.name(run, 'resume')
"""


@pytest.mark.parametrize("place", ["before step one", "end"])
def test_time_and_numbers_go_on_from_phase_to_phase(tmp_path: Path, place: str) -> None:
    """Clock and identifiers continue where the process before died, and never repeat."""
    with recorded(tmp_path, CARRIED) as store:
        prepared = [note.split() for note in store.notes() if note.startswith("prepare")]
        store.verdict(store.at(place))
        notes = prepared[-1:] + [note.split() for note in store.notes()]
    phases = [phase for phase, *_ in notes]
    named = [name for _, name, *_ in notes if name != "-"]
    clocks = [(int(clock), int(now)) for _, _, clock, now in notes]
    died_early = place == "before step one"
    executed = ["execute"] if died_early else ["execute", "execute"]
    assert phases == ["prepare", *executed, "recover", "check", "recover", "resume", "check"]
    assert named == [f"id-{n:04d}" for n in range(1, len(named) + 1)]
    assert [clock for clock, now in clocks] == [now for clock, now in clocks]
    assert [clock for clock, _ in clocks] == sorted(clock for clock, _ in clocks)
    slept = clocks[len(executed) + 1][0] - clocks[1][0]
    assert slept == 1_500_000_000 + 1_000_000 * (1 if died_early else 2)


def test_promises_and_effects_go_on_from_phase_to_phase(tmp_path: Path) -> None:
    """Promises of prepare, execute, recover and resume bind until they are withdrawn."""
    body = """
    delivery = {'sent': 'checked'}
    def prepare(self, root, run):
        save(root / 's', 0); run.promise('kept', n=0); run.promise('kept', n=9)
        run.effect('sent', n=0)
    def act(self, root, run):
        run.effect('sent', n=1); save(root / 's', 1)
    def execute(self, root, run):
        run.withdraw('kept', n=9)
        run.step('one', lambda: self.act(root, run), then=1)
        run.promise('kept', n=1)
    def recover(self, root, run):
        run.promise('kept', n=2); run.effect('sent', n=2)
    def resume(self, root, run):
        run.promise('kept', n=3); run.withdraw('kept', n=0)
        run.effect('sent', n=3)
        note(f"past {[x.facts['n'] for x in run.past.effects]} {run.past.observed}")
        note(f"effects {[x['n'] for x in run.effects('sent')]}")
    def promised_kept(self, root, evidence, *, n): return True
    def check(self, root, evidence):
        note(f'{evidence.phase} {evidence.acknowledged} {evidence.in_flight}'
             f' {[x.facts["n"] for x in evidence.promises]}'
             f' {[x.facts["n"] for x in evidence.effects]} {evidence.expected}')
    """
    with recorded(tmp_path, body) as store:
        store.notes()
        store.verdict(store.at("before write s.new"))
        inside = store.notes()
        store.verdict(len(store.recording.lines))
        ended = store.notes()
    assert inside == [
        "recovered [] one [0, 2] [0, 1, 2] [0, 1]",
        "past [0, 1, 2, 2] 0",
        "effects [0, 1, 2, 2, 3]",
        "resumed [] None [2, 3] [0, 1, 2, 2, 3] None",
    ]
    assert ended == [
        "recovered ['one'] None [0, 1, 2] [0, 1, 2] [1]",
        "past [0, 1, 2, 2] 1",
        "effects [0, 1, 2, 2, 3]",
        "resumed ['one'] None [1, 2, 3] [0, 1, 2, 2, 3] None",
    ]


@pytest.mark.parametrize(
    ("contract", "act", "invariant"),
    [
        ("at-most-once", "run.effect('sent', n=1)", "delivery sent"),
        ("exactly-once", "run.effect('sent', n=1)", "delivery sent"),
        ("at-least-once", "run.effect('sent', n=1)", None),
        ("checked", "run.effect('sent', n=1)", None),
        ("at-least-once", "FLAG.exists() or run.effect('sent', n=1)", "delivery sent"),
        ("exactly-once", "FLAG.exists() or run.effect('sent', n=1)", "delivery sent"),
    ],
)
def test_a_contract_is_held_across_the_crash(
    tmp_path: Path, contract: str, act: str, invariant: str | None
) -> None:
    """A step that repeats its effect, or forgets it, breaks what its contract says."""
    body = f"""
    delivery = {{'sent': '{contract}'}}
    def act(self, root, run):
        {act}
        save(root / 's', 1)
    def execute(self, root, run):
        {"" if contract == "at-most-once" else "run.promise('sent', n=1)"}
        run.step('one', lambda: self.act(root, run), then=1)
    """
    body = body.replace("def execute", "def promised_x(self, root, evidence): ...\n    def execute")
    with recorded(tmp_path, body) as store:
        if "FLAG" in act:
            store.misbehave()
        boundary = store.at("before step one" if "FLAG" in act else "before write s.new")
        verdict = store.verdict(boundary)
    found = verdict.violation.invariant if verdict.violation else None
    assert found == invariant
    if invariant is not None:
        assert verdict.violation is not None
        assert contract in verdict.violation.message
        assert verdict.violation.stage == "after resume"


def test_the_root_is_the_same_in_every_phase(tmp_path: Path) -> None:
    """The root is absolute, resolved, the working directory, and empty in prepare."""
    body = """
    def tell(self, phase, root):
        note(f'{root} {Path.cwd() == root == root.resolve() and root.is_absolute()}')
    def prepare(self, root, run):
        assert list(root.iterdir()) == []
        self.tell('prepare', root); save(root / 's', 0)
    def execute(self, root, run):
        self.tell('execute', root); run.step('one', lambda: save(root / 's', 1), then=1)
    def recover(self, root, run): self.tell('recover', root)
    def observe(self, root): self.tell('observe', root); return load(root / 's')
    def check(self, root, evidence): self.tell('check', root)
    """
    with recorded(tmp_path, body) as store:
        store.verdict(store.at("after step one"))
        assert set(store.notes()) == {f"{store.root} True"}


def test_fixture_value_reaches_every_phase(tmp_path: Path) -> None:
    """What prepare returns is run.fixture in all later phases, as JSON."""
    body = """
    def prepare(self, root, run): save(root / 's', 0); return {'ids': (1, 2)}
    def execute(self, root, run):
        note(run.fixture); run.step('one', lambda: save(root / 's', 1), then=1)
    def recover(self, root, run): note(run.fixture)
    """
    with recorded(tmp_path, body) as store:
        store.notes()
        store.verdict(store.at("after step one"))
        assert store.notes() == ["{'ids': [1, 2]}"] * 4


def test_what_judging_does_to_the_files_is_thrown_away(tmp_path: Path) -> None:
    """observe and check may write: recovery and resume see nothing of it."""
    body = """
    def observe(self, root):
        save(root / 'litter', 1); return load(root / 's')
    def check(self, root, evidence): save(root / 'litter', 1)
    def recover(self, root, run): assert not (root / 'litter').exists()
    def resume(self, root, run):
        assert not (root / 'litter').exists()
        save(root / 's', 2)
    """
    result = run_body(tmp_path, body)
    assert (result.exit_code, result.findings) == (0, [])


def test_an_attached_observer_makes_named_points(tmp_path: Path) -> None:
    """attach comes first in each traced phase; points are boundaries, at their place."""
    body = """
    class Store:
        observer = None
    def attach(self, observer): self.Store.observer = staticmethod(observer)
    def act(self, root):
        self.Store.observer('point', 'before', 'publish')
        save(root / 's', 1)
    def execute(self, root, run): run.step('one', lambda: self.act(root), then=1)
    def observe(self, root):
        assert self.Store.observer is None
        return load(root / 's')
    """
    with recorded(tmp_path, body) as store:
        assert store.recording.lines[:3] == [
            "before step one",
            "before point publish",
            "before write s.new",
        ]
        assert store.verdict(2).kind == "survived"


def test_a_module_is_written_as_it_is(tmp_path: Path) -> None:
    """The helper of these tests keeps a class that is given whole."""
    found = written(tmp_path, "class Tested(_Base): pass")
    assert Path(found.path).read_text().endswith("class Tested(_Base): pass")


def test_an_own_resume_may_go_on_with_the_workload(tmp_path: Path) -> None:
    """Steps that were acknowledged are skipped where an own resume calls execute."""
    body = """
    def act(self, root, n): note(n); save(root / 's', n)
    def execute(self, root, run):
        for n in (1, 2): run.step(f'save {n}', lambda n=n: self.act(root, n), then=n)
    def resume(self, root, run): note('resume'); super().resume(root, run)
    """
    with recorded(tmp_path, body) as store:
        store.notes()
        assert store.verdict(store.at("after step save 1")).kind == "survived"
        assert store.notes() == ["1", "resume", "2"]


def test_a_check_of_plain_asserts_counts_as_one_subject(tmp_path: Path) -> None:
    """Vacuity shows: each look counts, and a generator that yields nothing counts none."""
    body = "def check(self, root, evidence): assert evidence.observed in (0, 1, 2)"
    with recorded(tmp_path, body) as store:
        assert store.verdict(1).subjects["check"] == 2
    body = """
    invariants = ('whole',)
    def check(self, root, evidence): yield from ()
    """
    with recorded(tmp_path, body) as store:
        assert store.verdict(1).subjects == {"whole": 0, "step_atomicity": 1}
