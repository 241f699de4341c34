"""
The state machine as the schema holds it: edges, predecessors, times, ends.
"""

import pytest
from run_store_schema_world import PATH_TO, TERMINAL, World

from store.run_store import LEGAL_EDGES, TERMINAL_PHASES, Phase

FOREIGN_KEY = "FOREIGN KEY constraint failed"

SHARED_EVENT = (
    "UNIQUE constraint failed: attempt_transitions.attempt_id, attempt_transitions.event_sequence"
)

EDGES = {
    ("reserved", "materializing"),
    ("materializing", "starting"),
    ("starting", "preparing"),
    ("preparing", "executing"),
    ("executing", "checkpointing"),
    ("checkpointing", "validating"),
    ("executing", "validating"),
    ("validating", "evaluating"),
    ("evaluating", "executing"),
    ("reserved", "finalizing"),
    ("materializing", "finalizing"),
    ("starting", "finalizing"),
    ("preparing", "finalizing"),
    ("executing", "finalizing"),
    ("checkpointing", "finalizing"),
    ("validating", "finalizing"),
    ("evaluating", "finalizing"),
    ("finalizing", "accepted"),
    ("finalizing", "censored"),
    ("finalizing", "superseded"),
    ("finalizing", "failed"),
}

STATES = tuple(PATH_TO)

NO_EDGES = {
    (before, after) for before in STATES for after in STATES if before not in TERMINAL
} - EDGES


@pytest.fixture
def world() -> World:
    world = World()
    world.plan()
    world.store_artifacts()
    world.reserve()
    return world


def test_library_names_the_same_edges() -> None:
    """RS-066: the edges that the writer allows are exactly those of the state machine."""
    named = {(before.value, after.value) for before in Phase for after in LEGAL_EDGES[before]}
    assert named == EDGES
    assert set(TERMINAL) == {phase.value for phase in TERMINAL_PHASES}


@pytest.mark.parametrize(("before", "after"), sorted(EDGES))
def test_legal_edge_is_accepted(world: World, before: str, after: str) -> None:
    """RS-066: each edge of the state machine can be walked."""
    world.reach(before)
    if after == "accepted":
        world.claim()
    with world.committed():
        world.move(after)
        world.run("DELETE FROM finalization_claims")
    assert [(after,)] == world.run("SELECT state FROM attempts")


@pytest.mark.parametrize(("before", "after"), sorted(NO_EDGES))
def test_other_edge_is_refused(world: World, before: str, after: str) -> None:
    """RS-066: from a nonterminal state every other edge is refused, staying put among them."""
    world.reach(before)
    reason = (
        "attempts: acceptance requires the finalization claim"
        if after == "accepted"
        else "CHECK constraint failed: attempt_transitions_legal_edge"
    )
    with world.refused(reason):
        world.move(after)


@pytest.mark.parametrize("before", TERMINAL)
@pytest.mark.parametrize("after", STATES)
def test_terminal_attempt_cannot_change(world: World, before: str, after: str) -> None:
    """RS-066 RS-070: no edge leads away from a terminal state, nor back to it."""
    world.reach(before)
    with world.refused("attempts: a terminal attempt cannot change"):
        world.move(after)


@pytest.mark.parametrize("before", TERMINAL)
@pytest.mark.parametrize("setting", ["failure_code = 'other'", "state = state", "revision = 3"])
def test_terminal_projection_is_frozen(world: World, before: str, setting: str) -> None:
    """RS-070: no column of a terminal attempt can be written."""
    world.reach(before)
    with world.refused("attempts: a terminal attempt cannot change"):
        world.run(f"UPDATE attempts SET {setting}")


@pytest.mark.parametrize("state", STATES)
def test_attempt_cannot_be_deleted(world: World, state: str) -> None:
    """RS-070: an attempt is never deleted, also not by replacing it on either key."""
    world.reach(state)
    reason = "attempts: an attempt cannot be deleted"
    with world.refused(reason):
        world.run("DELETE FROM attempts")
    if state == "accepted":
        reason = "attempts: a satisfied slot takes no new attempt"
    for values in ({"attempt_id": "a", "retry_index": 1}, {"attempt_id": "b"}):
        with world.refused(reason):
            world.insert("attempts", "INSERT OR REPLACE", **values)


def test_edge_to_an_unknown_state_is_refused(world: World) -> None:
    """RS-066: a state that the layout does not name is refused in the projection."""
    with world.refused("CHECK constraint failed: attempts_state"):
        world.move("resting")


@pytest.mark.parametrize(
    "values",
    [
        {"state": "materializing"},
        {"revision": 1},
        {"changed_at_ns": 11},
    ],
)
def test_attempt_begins_reserved_at_revision_zero(world: World, values: dict[str, object]) -> None:
    """RS-066 RS-068: an attempt cannot begin anywhere but at its reservation."""
    with world.refused("attempts: a new attempt is reserved, at revision 0"):
        world.insert("attempts", **{"attempt_id": "b", "retry_index": 1, **values})


def transition(world: World, **values: object) -> None:
    """Move `a` from reserved to materializing, with *values* instead of the right ones."""
    world.project("materializing", 1, 20)
    row = {
        "revision": 1,
        "from_state": "reserved",
        "to_state": "materializing",
        "at_ns": 20,
        "previous_at_ns": 10,
        "event_sequence": world.event("a", "attempt_transition", 20),
        "event_kind": "attempt_transition",
    }
    world.insert("attempt_transitions", **{**row, **values})


def test_transition_with_the_right_values_is_accepted(world: World) -> None:
    """RS-067: the transition that the tests below distort is a good one."""
    with world.committed():
        transition(world)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"from_state": None}, "CHECK constraint failed: attempt_transitions_legal_edge"),
        ({"from_state": "finalizing"}, "CHECK constraint failed: attempt_transitions_legal_edge"),
        (
            {"previous_at_ns": None},
            "CHECK constraint failed: attempt_transitions_time_never_decreases",
        ),
        (
            {"previous_at_ns": 21},
            "CHECK constraint failed: attempt_transitions_time_never_decreases",
        ),
        ({"previous_at_ns": 11}, FOREIGN_KEY),
        ({"previous_at_ns": 9}, FOREIGN_KEY),
    ],
)
def test_transition_names_its_exact_predecessor(
    world: World, values: dict[str, object], reason: str
) -> None:
    """RS-067: state and time of the predecessor must be those that it has, and not left out."""
    with world.refused(reason):
        transition(world, **values)


def test_transition_names_a_predecessor_of_its_own_state(world: World) -> None:
    """RS-067: a predecessor that stands in another state than named is refused."""
    world.reach("executing")
    with world.refused(FOREIGN_KEY):
        world.project("validating", 5, 20)
        world.insert(
            "attempt_transitions",
            revision=5,
            from_state="checkpointing",
            to_state="validating",
            at_ns=20,
            previous_at_ns=20,
            event_sequence=world.event("a", "attempt_transition", 20),
            event_kind="attempt_transition",
        )


@pytest.mark.parametrize(
    "values", [{"revision": 2}, {"revision": 0}, {"to_state": "finalizing"}, {"at_ns": 21}]
)
def test_transition_is_the_projection_s(world: World, values: dict[str, object]) -> None:
    """RS-067: a transition that differs from the current projection is refused at once."""
    with world.refused("attempt_transitions: a transition records the current projection"):
        transition(world, **values)


def test_projection_without_its_transition_cannot_commit(world: World) -> None:
    """RS-067: a projection that has moved without history fails at commit."""
    with world.refused(FOREIGN_KEY):
        world.project("materializing", 1, 20)
    with world.refused(FOREIGN_KEY):
        world.project("materializing", 1, 20)
        world.event("a", "attempt_transition", 20)


def test_history_without_the_projection_is_refused(world: World) -> None:
    """RS-067: event and transition are worth nothing while the projection stands still."""
    with world.refused("attempt_transitions: a transition records the current projection"):
        world.insert(
            "attempt_transitions",
            revision=1,
            from_state="reserved",
            to_state="materializing",
            at_ns=20,
            previous_at_ns=10,
            event_sequence=world.event("a", "attempt_transition", 20),
            event_kind="attempt_transition",
        )


@pytest.mark.parametrize("event_at_ns", [19, 21])
def test_transition_and_event_share_attempt_and_time(world: World, event_at_ns: int) -> None:
    """RS-048: an event of another time or another attempt is not the transition's event."""
    world.reserve("b", 1)
    with world.refused(FOREIGN_KEY):
        transition(world, event_sequence=world.event("a", "attempt_transition", event_at_ns))
    with world.refused(FOREIGN_KEY):
        transition(world, event_sequence=world.event("b", "attempt_transition", 20))
    with world.refused(FOREIGN_KEY):
        transition(world, event_sequence=99)


def test_event_serves_one_transition(world: World) -> None:
    """RS-048: two transitions cannot share an event."""
    with world.committed():
        transition(world)
    with world.refused(SHARED_EVENT):
        world.project("starting", 2, 20)
        world.insert(
            "attempt_transitions",
            revision=2,
            from_state="materializing",
            to_state="starting",
            at_ns=20,
            previous_at_ns=20,
            event_sequence=world.run("SELECT max(sequence) FROM events")[0][0],
            event_kind="attempt_transition",
        )


@pytest.mark.parametrize("kind", ["attempt_transition", "attempt_finalizing", "attempt_finished"])
def test_event_of_a_transition_needs_the_transition(world: World, kind: str) -> None:
    """RS-048: an event that tells of a transition cannot commit without one."""
    with world.refused(FOREIGN_KEY):
        world.event("a", kind, 10)


def test_event_of_another_kind_cannot_serve_a_transition(world: World) -> None:
    """RS-048: the event's kind is the one that the transition names."""
    with world.refused(FOREIGN_KEY):
        transition(world, event_sequence=world.event("a", "note", 20))


KINDS = ("attempt_reserved", "attempt_transition", "attempt_finalizing", "attempt_finished")

KINDS_TO = {
    "materializing": ("attempt_transition",),
    "finalizing": ("attempt_transition", "attempt_finalizing"),
    "failed": ("attempt_finished",),
}


def write_transition(world: World, state: str, kind: str) -> None:
    """Move `a` to *state* with an event of *kind*, inside the caller's transaction."""
    [(before, revision, changed)] = world.run("SELECT state, revision, changed_at_ns FROM attempts")
    end = {"finished_at_ns": 20, "final_artifact_id": "xa", "failure_code": "broken"}
    world.project(state, revision + 1, 20, **(end if state == "failed" else {}))
    world.insert(
        "attempt_transitions",
        revision=revision + 1,
        from_state=before,
        to_state=state,
        at_ns=20,
        previous_at_ns=changed,
        event_sequence=world.event("a", kind, 20),
        event_kind=kind,
    )


@pytest.mark.parametrize("state", sorted(KINDS_TO))
@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_event_follows_the_edge(world: World, state: str, kind: str) -> None:
    """RS-048: execution phases, finalizing and ends have their own kinds of event."""
    world.reach("finalizing" if state == "failed" else "reserved")
    outcome = (
        world.committed()
        if kind in KINDS_TO[state]
        else world.refused("CHECK constraint failed: attempt_transitions_event_kind")
    )
    with outcome:
        write_transition(world, state, kind)


def test_history_has_no_gap(world: World) -> None:
    """RS-048: a walked history holds each revision once, from 0 to the current one."""
    world.reach("evaluating")
    found = world.run("SELECT revision FROM attempt_transitions ORDER BY revision")
    assert [(revision,) for revision in range(7)] == found
    with world.refused("attempts: the revision grows by exactly one"):
        world.project("executing", 8, 20)


@pytest.mark.parametrize(
    "setting",
    ["attempt_id = 'b'", "slot_id = 'w'", "retry_index = 5", "started_at_ns = 9"],
)
def test_update_keeps_the_identity(world: World, setting: str) -> None:
    """RS-068: id, slot, retry index and start time stay through every update."""
    with world.refused("attempts: id, slot, retry index and start time cannot change"):
        world.run(f"UPDATE attempts SET revision = 1, state = 'materializing', {setting}")


@pytest.mark.parametrize("revision", [0, 2, 10])
def test_revision_grows_by_one(world: World, revision: int) -> None:
    """RS-068: an update that keeps the revision, or skips one, is refused."""
    with world.refused("attempts: the revision grows by exactly one"):
        world.project("materializing", revision, 20)


def test_time_may_stand_still_but_not_go_back(world: World) -> None:
    """RS-068: a transition may have its predecessor's time, and no earlier one."""
    with world.refused("attempts: the transition time cannot decrease"):
        world.move("materializing", at_ns=9)
    with world.committed():
        world.move("materializing", at_ns=10)


def test_failure_needs_a_code(world: World) -> None:
    """RS-071: a failed attempt without a code, or with an empty one, is refused."""
    world.reach("finalizing")
    with world.refused("CHECK constraint failed: attempts_failure_has_code"):
        world.move("failed", failure_code=None)
    with world.refused("CHECK constraint failed: attempts_failure_code_nonempty"):
        world.move("failed", failure_code="")
    with world.committed():
        world.move("failed", failure_code="interrupted_attempt")


@pytest.mark.parametrize("state", [state for state in STATES if state != "failed"])
def test_only_a_failure_has_a_code(world: World, state: str) -> None:
    """RS-071: every other state refuses a failure code."""
    if state == "reserved":
        with world.refused("CHECK constraint failed: attempts_failure_has_code"):
            world.insert("attempts", attempt_id="b", retry_index=1, failure_code="broken")
        return
    *path, last = PATH_TO[state]
    for step in path:
        with world.committed():
            world.move(step)
    if state == "accepted":
        world.claim()
    with world.refused("CHECK constraint failed: attempts_failure_has_code"):
        world.move(last, failure_code="broken")


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize(
    "values", [{"final_artifact_id": None}, {"finished_at_ns": None}, {"finished_at_ns": 19}]
)
def test_terminal_attempt_is_complete(world: World, state: str, values: dict[str, object]) -> None:
    """RS-072: every end has a final artifact and a finish time, the time of its transition."""
    world.reach("finalizing")
    world.claim()
    with world.refused("CHECK constraint failed: attempts_terminal_is_complete"):
        world.move(state, **values)


@pytest.mark.parametrize("state", ["materializing", "finalizing"])
@pytest.mark.parametrize("values", [{"final_artifact_id": "xa"}, {"finished_at_ns": 20}])
def test_nonterminal_attempt_is_not_complete(
    world: World, state: str, values: dict[str, object]
) -> None:
    """RS-072: before its end an attempt has neither a final artifact nor a finish time."""
    with world.refused("CHECK constraint failed: attempts_terminal_is_complete"):
        world.move(state, **values)


def test_slot_has_one_accepted_attempt(world: World) -> None:
    """RS-057: `one_accepted_attempt_per_slot` lets one attempt be accepted and keeps the others."""
    world.reserve("b", 1)
    world.reserve("c", 2)
    world.reach("failed", "c")
    world.reach("finalizing", "b")
    world.reach("accepted", "a")
    world.run("DROP TRIGGER attempts_update_guard")
    with world.refused("UNIQUE constraint failed: attempts.slot_id"):
        world.move("accepted", "b")
    with world.committed():
        world.move("superseded", "b")
    found = world.run("SELECT attempt_id, state FROM attempts ORDER BY attempt_id")
    assert found == [("a", "accepted"), ("b", "superseded"), ("c", "failed")]


def test_accepted_attempt_index_is_partial_and_unique(world: World) -> None:
    """RS-057: the index has its name, is unique, and looks at accepted attempts only."""
    found = world.run(
        "SELECT \"unique\", partial FROM pragma_index_list('attempts')"
        " WHERE name = 'one_accepted_attempt_per_slot'"
    )
    assert found == [(1, 1)]


@pytest.mark.parametrize("claimed", [False, True])
def test_finalizing_satisfies_nothing(world: World, claimed: bool) -> None:
    """RS-073: neither finalizing nor the claim keeps another attempt from the slot."""
    world.reach("finalizing")
    if claimed:
        world.claim()
    world.reserve("b", 1)
    world.reach("finalizing", "b")


def test_accepted_slot_takes_no_new_attempt(world: World) -> None:
    """RS-073: acceptance, and only acceptance, closes the slot."""
    world.reach("accepted")
    with world.refused("attempts: a satisfied slot takes no new attempt"):
        world.insert("attempts", attempt_id="b", retry_index=1)
    world.reserve("c", 0, slot_id="w")


def test_acceptance_needs_the_attempt_s_own_claim(world: World) -> None:
    """RS-073: an attempt without the claim is not accepted, whoever else holds it."""
    world.reserve("b", 1)
    world.reach("finalizing", "a")
    world.reach("finalizing", "b")
    with world.refused("attempts: acceptance requires the finalization claim"):
        world.move("accepted", "a")
    world.claim("b")
    with world.refused("attempts: acceptance requires the finalization claim"):
        world.move("accepted", "a")
