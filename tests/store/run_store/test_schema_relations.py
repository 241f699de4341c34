"""
The relations of the planned records, attempts and observations, each both ways.
"""

import pytest
from run_store_schema_world import World

from store.run_store.identity import SAFE_INTEGER_MAX
from store.run_store.requests import TIMESTAMP_NS_MAX

FOREIGN_KEY = "FOREIGN KEY constraint failed"


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("disposition", ["applicable", "excluded"])
def test_decision_keeps_either_disposition(world: World, disposition: str) -> None:
    """RS-041: a decision is kept with its evidence, also one that excludes the candidate."""
    with world.committed():
        world.insert(
            "applicability_decisions", disposition=disposition, record_json='{"evidence":{"a":1}}'
        )
    found = world.run("SELECT disposition, record_json FROM applicability_decisions")
    assert [(disposition, '{"evidence":{"a":1}}')] == found


def test_decision_refuses_another_disposition(world: World) -> None:
    """RS-041: a decision is applicable or excluded, nothing in between."""
    with world.refused("CHECK constraint failed: applicability_decisions_disposition"):
        world.insert("applicability_decisions", disposition="perhaps")


def test_decision_is_identified_once(world: World) -> None:
    """RS-041: one decision id stands for one decision."""
    world.plan()
    with world.refused("UNIQUE constraint failed: applicability_decisions.decision_id"):
        world.insert("applicability_decisions", candidate_id="c2")


def test_run_needs_an_applicable_decision(world: World) -> None:
    """RS-042: a run bound to an excluding decision is refused, to an applicable one taken."""
    with world.committed():
        world.insert("applicability_decisions")
        world.insert("applicability_decisions", decision_id="no", disposition="excluded")
    with world.refused(FOREIGN_KEY):
        world.insert("resolved_runs", decision_id="no")
    with world.committed():
        world.insert("resolved_runs")
    assert world.run("SELECT run_id, logical_run_id FROM resolved_runs") == [("r", "lr")]


def test_run_needs_a_decision_about_its_own_candidate(world: World) -> None:
    """RS-042: an applicable decision about another candidate does not carry a run."""
    with world.committed():
        world.insert("applicability_decisions")
        world.insert("applicability_decisions", decision_id="d2", candidate_id="c2")
    with world.refused(FOREIGN_KEY):
        world.insert("resolved_runs", decision_id="d2")
    with world.committed():
        world.insert("resolved_runs", decision_id="d2", candidate_id="c2")


def test_logical_observation_slot_occurs_once_per_run(world: World) -> None:
    """RS-043: a run holds one observation slot for a logical slot; another run its own."""
    world.plan()
    with world.refused(
        "UNIQUE constraint failed: observation_slots.run_id, observation_slots.logical_slot_id"
    ):
        world.insert("observation_slots", slot_id="o2")
    with world.committed():
        world.insert("resolved_runs", run_id="r2")
        world.insert("observation_slots", slot_id="o2", run_id="r2")


def test_observation_slot_needs_its_run(world: World) -> None:
    """RS-043: an observation slot belongs to a registered run."""
    world.plan()
    with world.refused(FOREIGN_KEY):
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2", run_id="r2")


def test_observation_slot_refuses_another_kind(world: World) -> None:
    """RS-043: an observation slot has a kind that the layout names."""
    world.plan()
    with world.refused("CHECK constraint failed: observation_slots_kind"):
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2", kind="other")


def test_logical_attempt_slot_occurs_once_per_run(world: World) -> None:
    """RS-044: a run holds one execution slot for a logical slot; another run its own."""
    world.plan()
    with world.refused(
        "UNIQUE constraint failed: attempt_slots.run_id, attempt_slots.logical_slot_id"
    ):
        world.insert("attempt_slots", slot_id="s2")
    with world.committed():
        world.insert("resolved_runs", run_id="r2")
        world.insert("attempt_slots", slot_id="s2", run_id="r2")


@pytest.mark.parametrize(
    ("column", "rule"),
    [("execution_kind", "attempt_slots_execution_kind"), ("role", "attempt_slots_role")],
)
def test_attempt_slot_refuses_another_kind_or_role(world: World, column: str, rule: str) -> None:
    """RS-044: an execution slot has a kind and a role that the layout names."""
    world.plan()
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert("attempt_slots", slot_id="s2", logical_slot_id="l2", **{column: "other"})


@pytest.mark.parametrize("role", ["measurement", "warm_up"])
def test_attempt_slot_takes_either_role(world: World, role: str) -> None:
    """RS-044: an execution measures or warms up."""
    world.plan()
    with world.committed():
        world.insert("attempt_slots", slot_id="s2", logical_slot_id="l2", role=role)


def test_execution_slot_may_own_several_observation_slots(world: World) -> None:
    """RS-045: one execution slot owns any number of checkpoint slots."""
    world.plan()
    with world.committed():
        for name in ("o2", "o3"):
            world.insert("observation_slots", slot_id=name, logical_slot_id=name, kind="checkpoint")
            world.insert("attempt_observation_slots", observation_slot_id=name)
    assert world.run(
        "SELECT observation_slot_id FROM attempt_observation_slots WHERE attempt_slot_id = 's'"
    ) == [("o",), ("o2",), ("o3",)]


def test_observation_slot_has_one_execution_slot(world: World) -> None:
    """RS-045: an observation slot belongs to exactly one execution slot."""
    world.plan()
    with world.committed():
        world.insert("attempt_slots", slot_id="s2", logical_slot_id="l2")
    with world.refused("UNIQUE constraint failed: attempt_observation_slots.observation_slot_id"):
        world.insert("attempt_observation_slots", attempt_slot_id="s2")


@pytest.mark.parametrize(
    "membership",
    [
        {"observation_slot_id": "o2", "run_id": "r"},
        {"observation_slot_id": "o2", "run_id": "r2"},
        {"observation_slot_id": "o2", "attempt_slot_id": "s2", "run_id": "r"},
    ],
)
def test_membership_stays_inside_one_run(world: World, membership: dict[str, str]) -> None:
    """RS-045: slots of two runs cannot be joined, whichever run the membership names."""
    world.plan()
    with world.committed():
        world.insert("resolved_runs", run_id="r2")
        world.insert("observation_slots", slot_id="o2", run_id="r2")
        world.insert("attempt_slots", slot_id="s2", run_id="r2")
    with world.refused(FOREIGN_KEY):
        world.insert("attempt_observation_slots", **membership)
    with world.committed():
        world.insert(
            "attempt_observation_slots", observation_slot_id="o2", attempt_slot_id="s2", run_id="r2"
        )


def test_warm_up_owns_no_observation_slot(world: World) -> None:
    """RS-045: a warm-up cannot be given an observation slot, so it never measures."""
    world.plan()
    with world.committed():
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2")
    with world.refused(FOREIGN_KEY):
        world.insert("attempt_observation_slots", observation_slot_id="o2", attempt_slot_id="w")


def test_retry_index_is_unique_in_its_slot(world: World) -> None:
    """RS-046: a slot has one attempt per retry index; another slot counts for itself."""
    world.plan()
    world.reserve("a", 0)
    with world.refused("UNIQUE constraint failed: attempts.slot_id, attempts.retry_index"):
        world.insert("attempts", attempt_id="a2")
    world.reserve("a2", 1)
    world.reserve("a3", 0, slot_id="w")


def test_attempt_id_is_unique(world: World) -> None:
    """RS-046: one attempt id stands for one attempt."""
    world.plan()
    world.reserve("a", 0)
    world.reach("materializing", "a")
    with world.refused("UNIQUE constraint failed: attempts.attempt_id"):
        world.insert("attempts", slot_id="w")


def test_attempt_needs_its_slot(world: World) -> None:
    """RS-046: an attempt belongs to a registered execution slot."""
    world.plan()
    with world.refused(FOREIGN_KEY):
        world.insert("attempts", slot_id="o")


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"retry_index": -1}, "attempts_retry_index_range"),
        ({"retry_index": SAFE_INTEGER_MAX + 1}, "attempts_retry_index_range"),
        ({"started_at_ns": -1, "changed_at_ns": -1}, "attempts_started_at_nonnegative"),
        ({"failure_code": ""}, "attempts_failure_code_nonempty"),
        ({"failure_code": "early"}, "attempts_failure_has_code"),
        ({"finished_at_ns": 10}, "attempts_terminal_is_complete"),
        ({"final_artifact_id": "xa"}, "attempts_terminal_is_complete"),
    ],
)
def test_attempt_refuses_values_out_of_place(
    world: World, values: dict[str, object], rule: str
) -> None:
    """RS-046 RS-061: ranges, and nothing terminal on an attempt that is not."""
    world.plan()
    world.store_artifacts()
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert("attempts", **values)


def test_attempt_takes_the_largest_retry_index(world: World) -> None:
    """RS-061: the largest canonical integer is a retry index."""
    world.plan()
    world.reserve("a", SAFE_INTEGER_MAX)
    assert world.run("SELECT retry_index FROM attempts") == [(SAFE_INTEGER_MAX,)]


def test_attempt_refuses_a_revision_beyond_canonical_json(world: World) -> None:
    """RS-061: no attempt and no transition has a revision above the largest canonical integer."""
    world.plan()
    world.reserve()
    world.run("DROP TRIGGER attempts_update_guard")
    world.run("DROP TRIGGER attempt_transitions_insert_guard")
    with world.refused("CHECK constraint failed: attempts_revision_range"):
        world.project("materializing", SAFE_INTEGER_MAX + 1, 20)
    with world.refused("CHECK constraint failed: attempt_transitions_revision_range"):
        world.insert(
            "attempt_transitions",
            revision=SAFE_INTEGER_MAX + 1,
            from_state="reserved",
            to_state="materializing",
            previous_at_ns=10,
            event_sequence=world.event("a", "attempt_transition", 10),
            event_kind="attempt_transition",
        )


def test_reservation_without_history_cannot_commit(world: World) -> None:
    """RS-065: an attempt alone, and an attempt with only its event, fail at commit."""
    world.plan()
    with world.refused(FOREIGN_KEY):
        world.insert("attempts")
    with world.refused(FOREIGN_KEY):
        world.insert("attempts")
        world.event("a", "attempt_reserved", 10)
    world.reserve()


def test_history_is_only_missed_at_commit(world: World) -> None:
    """RS-065: the reference to the transition is deferred, so the attempt may come first."""
    world.plan()
    world.run("BEGIN IMMEDIATE")
    world.insert("attempts")
    assert world.run("SELECT attempt_id FROM attempts") == [("a",)]
    world.run("ROLLBACK")


def test_events_are_sequenced_over_all_attempts(world: World) -> None:
    """RS-047 RS-062: SQLite numbers the events of all attempts, and of none, in one order."""
    world.plan()
    world.reserve("a")
    with world.committed():
        world.insert("events")
    world.reserve("b", 1)
    found = world.run("SELECT sequence, attempt_id FROM events ORDER BY sequence")
    assert found == [(1, "a"), (2, None), (3, "b")]


def test_event_sequence_is_no_identity(world: World) -> None:
    """RS-062: equal events differ in nothing but their sequence; a rollback frees the number."""
    with world.committed():
        world.insert("events")
        world.insert("events")
    assert world.run("SELECT count(*) FROM (SELECT DISTINCT kind, at_ns FROM events)") == [(1,)]
    world.run("BEGIN")
    world.insert("events")
    world.run("ROLLBACK")
    with world.committed():
        assert world.event(None, "note", 10) == 3


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"kind": ""}, "events_kind"),
        ({"kind": "attempt_vanished", "attempt_id": "a"}, "events_kind"),
        ({"at_ns": -1}, "events_at_nonnegative"),
        ({"sequence": 0}, "events_sequence_positive"),
        ({"kind": "attempt_reserved"}, "events_attempt_kind_has_attempt"),
    ],
)
def test_event_refuses_values_out_of_place(
    world: World, values: dict[str, object], rule: str
) -> None:
    """RS-047: an event has a kind, a time, and an attempt where its kind speaks of one."""
    world.plan()
    world.reserve()
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert("events", **values)


def test_event_needs_its_attempt(world: World) -> None:
    """RS-047: a scoped event names an attempt of the store; an unscoped one names none."""
    world.plan()
    world.reserve()
    with world.refused(FOREIGN_KEY):
        world.insert("events", attempt_id="b")
    with world.committed():
        world.insert("events", attempt_id="a")
        world.insert("events", attempt_id=None)


@pytest.mark.parametrize(
    "values", [{"valid": 2}, {"valid": -1}, {"completion": "nearly"}, {"registered_at_ns": -1}]
)
def test_observation_refuses_values_out_of_range(world: World, values: dict[str, object]) -> None:
    """RS-051: validity is 0 or 1, completion reached or not reached, the time not negative."""
    world.populate()
    rules = {
        "valid": "observations_valid",
        "completion": "observations_completion",
        "registered_at_ns": "observations_registered_at_nonnegative",
    }
    with world.refused(f"CHECK constraint failed: {rules[next(iter(values))]}"):
        world.insert("observations", observation_id="ob2", **values)


@pytest.mark.parametrize("valid", [0, 1])
@pytest.mark.parametrize("completion", ["reached", "not_reached"])
def test_validity_and_completion_are_separate(world: World, valid: int, completion: str) -> None:
    """RS-051: each validity goes with each completion status."""
    world.populate()
    with world.committed():
        world.insert("observations", observation_id="ob2", valid=valid, completion=completion)


@pytest.mark.parametrize(
    "values",
    [
        {"attempt_id": "b2"},
        {"attempt_id": "v", "attempt_slot_id": "s"},
        {"attempt_id": "v", "attempt_slot_id": "w"},
        {"slot_id": "o2"},
        {"artifact_id": "x"},
        {"artifact_id": "xa"},
        {"artifact_id": "missing"},
    ],
)
def test_observation_needs_producer_membership_and_directory(
    world: World, values: dict[str, str]
) -> None:
    """RS-051: producer, declared membership and a directory of kind observation must agree."""
    world.populate()
    world.reserve("v", 0, slot_id="w")
    with world.committed():
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2")
    with world.refused(FOREIGN_KEY):
        world.insert("observations", observation_id="ob2", **values)
    with world.committed():
        world.insert("observations", observation_id="ob2", attempt_id="b")


def test_selection_needs_a_valid_observation_of_its_slot(world: World) -> None:
    """RS-052: an invalid observation, or one of another slot, cannot be selected."""
    world.populate()
    with world.committed():
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2")
        world.insert("attempt_observation_slots", observation_slot_id="o2")
        world.insert("observations", observation_id="bad", slot_id="o2", valid=0)
        world.insert("observations", observation_id="good", slot_id="o2", completion="not_reached")
    for observation_id in ("bad", "ob", "missing"):
        reason = (
            "UNIQUE constraint failed: selected_observations.observation_id"
            if observation_id == "ob"
            else FOREIGN_KEY
        )
        with world.refused(reason):
            world.insert("selected_observations", slot_id="o2", observation_id=observation_id)
    with world.committed():
        world.insert("selected_observations", slot_id="o2", observation_id="good")


def test_selection_of_another_slot_is_refused_by_the_reference(world: World) -> None:
    """RS-052: an unselected valid observation of another slot is no candidate either."""
    world.populate()
    with world.committed():
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2")
        world.insert("attempt_observation_slots", observation_slot_id="o2")
        world.insert("observations", observation_id="ob2")
    with world.refused(FOREIGN_KEY):
        world.insert("selected_observations", slot_id="o2", observation_id="ob2")


def test_slot_has_one_selection(world: World) -> None:
    """RS-052: a second selection of a slot is refused."""
    world.populate()
    with world.committed():
        world.insert("observations", observation_id="ob2", attempt_id="b")
    with world.refused("UNIQUE constraint failed: selected_observations.slot_id"):
        world.insert("selected_observations", observation_id="ob2")


def test_ids_compare_byte_by_byte(world: World) -> None:
    """RS-058: ids that differ in case or in a trailing space are two ids."""
    world.plan()
    with world.committed():
        for name in ("D", "d ", " d"):
            world.insert("applicability_decisions", decision_id=name)
    assert world.run("SELECT decision_id FROM applicability_decisions WHERE decision_id = 'd'") == [
        ("d",)
    ]
    [(collations,)] = world.run("SELECT count(*) FROM sqlite_schema WHERE sql LIKE '%collate%'")
    assert collations == 0


def test_times_fill_sixty_three_bits(world: World) -> None:
    """RS-060: the largest 64 bit time is stored exactly, in every table that has one."""
    world.plan()
    with world.committed():
        world.insert("events", at_ns=TIMESTAMP_NS_MAX)
        world.insert("artifacts", verified_at_ns=TIMESTAMP_NS_MAX)
    assert world.run("SELECT at_ns FROM events") == [(TIMESTAMP_NS_MAX,)]
    assert world.run("SELECT verified_at_ns FROM artifacts") == [(TIMESTAMP_NS_MAX,)]


def test_no_planned_record_has_a_time_column(world: World) -> None:
    """RS-063: the tables of identified plans have no time, and the others keep it apart."""
    found = world.run(
        "SELECT DISTINCT t.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name) AS c"
        " WHERE t.schema = 'main' AND c.name LIKE '%at_ns' ORDER BY t.name"
    )
    expected = ["artifacts", "attempt_transitions", "attempts", "events", "leases", "observations"]
    assert [(name,) for name in expected] == found
