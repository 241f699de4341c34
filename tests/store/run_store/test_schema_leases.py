"""
Leases and finalization claims: one owner, one claim, and no way to take either back.
"""

import pytest
from run_store_schema_world import TERMINAL, World

FOREIGN_KEY = "FOREIGN KEY constraint failed"

OWNER = "finalization_claims: the lease belongs to the reservation owner"


@pytest.fixture
def world() -> World:
    world = World()
    world.plan()
    world.store_artifacts()
    world.reserve()
    return world


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"lease_id": ""}, "leases_id_nonempty"),
        ({"owner_token": ""}, "leases_owner_token_nonempty"),
        ({"purpose": "leisure"}, "leases_purpose"),
        ({"acquired_at_ns": -1}, "leases_acquired_at_nonnegative"),
        ({"expires_at_ns": 10}, "leases_expire_after_acquisition"),
        ({"released_at_ns": 9}, "leases_released_after_acquisition"),
        ({"purpose": "staging"}, "leases_staging_has_path"),
        ({"staging_path": "artifacts/.staging-1"}, "leases_staging_has_path"),
        ({"attempt_id": None}, "leases_ownership_has_attempt"),
        ({"attempt_id": None, "purpose": "finalization"}, "leases_ownership_has_attempt"),
    ],
)
def test_lease_refuses_values_out_of_place(
    world: World, values: dict[str, object], rule: str
) -> None:
    """RS-049: tokens, purpose, times and stage of a lease must fit together."""
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert("leases", **{"lease_id": "l2", **values})


def test_lease_id_is_a_unique_fencing_token(world: World) -> None:
    """RS-049: no two leases share an id, whatever they are for."""
    with world.refused("UNIQUE constraint failed: leases.lease_id"):
        world.insert("leases", lease_id="la", purpose="finalization")


def test_lease_takes_each_purpose(world: World) -> None:
    """RS-049: reservation, finalization, and stages with or without an attempt."""
    with world.committed():
        world.insert("leases", lease_id="f", purpose="finalization")
        world.insert("leases", lease_id="t1", purpose="staging", staging_path="artifacts/.s-1")
        world.insert(
            "leases",
            lease_id="t2",
            purpose="staging",
            staging_path="artifacts/.s-2",
            attempt_id=None,
        )
    found = world.run("SELECT lease_id, purpose FROM leases ORDER BY lease_id")
    assert found == [
        ("f", "finalization"),
        ("la", "reservation"),
        ("t1", "staging"),
        ("t2", "staging"),
    ]


@pytest.mark.parametrize("purpose", ["reservation", "finalization"])
def test_attempt_has_one_lease_of_ownership_each(world: World, purpose: str) -> None:
    """RS-049: an attempt has one reservation and one finalization lease, ever."""
    world.reach("finalizing")
    world.claim()
    with world.refused("UNIQUE constraint failed: leases.attempt_id, leases.purpose"):
        world.insert("leases", lease_id="l2", purpose=purpose)


def test_stage_has_one_unreleased_lease(world: World) -> None:
    """RS-049: a stage's path is leased once at a time, and again after release."""
    stage = {"purpose": "staging", "staging_path": "artifacts/.s"}
    with world.committed():
        world.insert("leases", lease_id="t1", **stage)
    with world.refused("UNIQUE constraint failed: leases.staging_path"):
        world.insert("leases", lease_id="t2", **stage)
    with world.committed():
        world.run("UPDATE leases SET released_at_ns = 20 WHERE lease_id = 't1'")
        world.insert("leases", lease_id="t2", **stage)


def test_lease_needs_its_attempt(world: World) -> None:
    """RS-049: a lease that names an attempt names one of the store."""
    with world.refused(FOREIGN_KEY):
        world.insert("leases", lease_id="l2", attempt_id="b")


@pytest.mark.parametrize("expires_at_ns", [100, 101, 2**63 - 1])
def test_renewal_may_extend_or_keep(world: World, expires_at_ns: int) -> None:
    """RS-094: a live lease is extended, or left as it is, by an update."""
    with world.committed():
        world.run("UPDATE leases SET expires_at_ns = 99 + 1")
        world.run("UPDATE leases SET expires_at_ns = ?", expires_at_ns)
        world.insert("events")
    assert [(expires_at_ns,)] == world.run("SELECT expires_at_ns FROM leases")


def test_renewal_cannot_shorten(world: World) -> None:
    """RS-094: no update moves an expiration back."""
    with world.refused("leases: a renewal cannot shorten the lease"):
        world.run("UPDATE leases SET expires_at_ns = 99")


def test_owner_token_cannot_change(world: World) -> None:
    """RS-094: no update hands a lease to another owner, not even one that extends it."""
    with world.refused("leases: the owner token cannot change"):
        world.run("UPDATE leases SET owner_token = 'thief', expires_at_ns = 200")


@pytest.mark.parametrize(
    "setting",
    [
        "lease_id = 'l2'",
        "attempt_id = NULL",
        "purpose = 'finalization'",
        "acquired_at_ns = 11",
        "staging_path = 'artifacts/.s'",
    ],
)
def test_identity_of_a_lease_cannot_change(world: World, setting: str) -> None:
    """RS-094: what a lease is for, since when and for whom, stays."""
    with world.refused("leases: id, attempt, purpose, acquisition and stage cannot change"):
        world.run(f"UPDATE leases SET {setting}")


@pytest.mark.parametrize(
    "setting",
    ["released_at_ns = NULL", "released_at_ns = 60", "expires_at_ns = 200", "owner_token = 'o'"],
)
def test_released_lease_never_comes_back(world: World, setting: str) -> None:
    """RS-094: a released lease cannot become active, be extended or be released anew."""
    with world.committed():
        world.run("UPDATE leases SET released_at_ns = 50")
    with world.refused("leases: a released lease cannot change"):
        world.run(f"UPDATE leases SET {setting}")


@pytest.mark.parametrize("released_at_ns", [None, 50])
def test_lease_cannot_be_deleted(world: World, released_at_ns: int | None) -> None:
    """RS-094: a lease stays, live or released, so that its id is never used again."""
    with world.committed():
        world.run("UPDATE leases SET released_at_ns = ?", released_at_ns)
        world.insert("events")
    with world.refused("leases: a lease cannot be deleted"):
        world.run("DELETE FROM leases")
    with world.refused("leases: a lease cannot be deleted"):
        world.insert("leases", "INSERT OR REPLACE", lease_id="la", owner_token="thief")


def test_claim_joins_slot_attempt_and_finalization_lease(world: World) -> None:
    """RS-050: a claim is accepted for the finalizing attempt of the slot, under its own lease."""
    world.reach("finalizing")
    world.claim()
    found = world.run("SELECT slot_id, attempt_id, lease_id FROM finalization_claims")
    assert found == [("s", "a", "fa")]


def test_slot_has_one_claim(world: World) -> None:
    """RS-050 RS-110: of two finalizing attempts, one holds the claim."""
    world.reserve("b", 1)
    world.reach("finalizing", "a")
    world.reach("finalizing", "b")
    world.claim("a")
    with world.refused("UNIQUE constraint failed: finalization_claims.slot_id"):
        world.insert("leases", lease_id="fb", attempt_id="b", purpose="finalization")
        world.insert("finalization_claims", attempt_id="b", lease_id="fb")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"slot_id": "w"}, FOREIGN_KEY),
        ({"attempt_id": "b"}, FOREIGN_KEY),
        ({"lease_id": "la"}, FOREIGN_KEY),
        ({"lease_id": "t"}, FOREIGN_KEY),
        (
            {"lease_id": "missing"},
            "finalization_claims: the lease belongs to the reservation owner",
        ),
    ],
)
def test_claim_refuses_parts_of_another_attempt(
    world: World, values: dict[str, str], reason: str
) -> None:
    """RS-050 RS-110: slot, attempt and finalization lease of a claim belong together."""
    world.reserve("b", 1)
    world.reach("finalizing", "a")
    world.reach("finalizing", "b")
    with world.committed():
        world.insert("leases", lease_id="f", purpose="finalization")
        world.insert("leases", lease_id="t", purpose="staging", staging_path="artifacts/.s")
    with world.refused(reason):
        world.insert("finalization_claims", **values)


@pytest.mark.parametrize("state", ["reserved", "executing", "failed"])
def test_claim_needs_a_finalizing_attempt(world: World, state: str) -> None:
    """RS-050: an attempt claims once it is finalizing, neither before nor after."""
    world.reach(state)
    with world.refused("finalization_claims: only a finalizing attempt can claim"):
        world.insert("leases", lease_id="f", purpose="finalization")
        world.insert("finalization_claims")


def test_claim_refuses_a_released_lease(world: World) -> None:
    """RS-110: a claim cannot rest on a lease that was released."""
    world.reach("finalizing")
    with world.refused("finalization_claims: a released lease cannot hold a claim"):
        world.insert("leases", lease_id="f", purpose="finalization", released_at_ns=20)
        world.insert("finalization_claims")


def test_claim_refuses_another_owner(world: World) -> None:
    """RS-110: the lease of a claim belongs to the owner of the reservation."""
    world.reach("finalizing")
    with world.refused(OWNER):
        world.insert("leases", lease_id="f", purpose="finalization", owner_token="thief")
        world.insert("finalization_claims")


def test_accepted_slot_cannot_be_claimed(world: World) -> None:
    """RS-110: after acceptance no other attempt gets the claim."""
    world.reserve("b", 1)
    world.reach("finalizing", "b")
    world.reach("accepted", "a")
    with world.refused("finalization_claims: an accepted slot cannot be claimed"):
        world.insert("leases", lease_id="fb", attempt_id="b", purpose="finalization")
        world.insert("finalization_claims", attempt_id="b", lease_id="fb")


@pytest.mark.parametrize(
    "setting", ["attempt_id = 'b'", "lease_id = 'l'", "slot_id = 'w'", "slot_id = slot_id"]
)
def test_claim_cannot_change(world: World, setting: str) -> None:
    """RS-110: a claim keeps its slot, its attempt and its lease, and so its owner."""
    world.reach("finalizing")
    world.claim()
    with world.refused("finalization_claims: a claim cannot change"):
        world.run(f"UPDATE finalization_claims SET {setting}")


def test_claim_cannot_be_taken_by_replacing_it(world: World) -> None:
    """RS-110: INSERT OR REPLACE does not steal the claim of an active attempt."""
    world.reserve("b", 1)
    world.reach("finalizing", "a")
    world.reach("finalizing", "b")
    world.claim("a")
    with world.refused("finalization_claims: the attempt of the claim is not terminal"):
        world.insert("leases", lease_id="fb", attempt_id="b", purpose="finalization")
        world.insert("finalization_claims", "INSERT OR REPLACE", attempt_id="b", lease_id="fb")


def test_claim_of_a_nonterminal_attempt_cannot_be_removed(world: World) -> None:
    """RS-114: the claim stays as long as its attempt is finalizing."""
    world.reach("finalizing")
    world.claim()
    with world.refused("finalization_claims: the attempt of the claim is not terminal"):
        world.run("DELETE FROM finalization_claims")


@pytest.mark.parametrize("state", TERMINAL)
def test_claim_goes_with_its_attempt(world: World, state: str) -> None:
    """RS-050 RS-114: the terminal transaction removes the claim, and cannot leave it behind."""
    world.reach("finalizing")
    world.claim()
    with world.refused(FOREIGN_KEY):
        world.move(state)
    with world.committed():
        world.move(state)
        world.run("DELETE FROM finalization_claims")
        world.run("UPDATE leases SET released_at_ns = 30")
    assert world.run("SELECT * FROM finalization_claims") == []


def test_lease_of_a_claim_can_be_released(world: World) -> None:
    """RS-049: releasing the lease of a claim stays possible; the claim is kept for recovery."""
    world.reach("finalizing")
    world.claim()
    with world.committed():
        world.run("UPDATE leases SET released_at_ns = 30 WHERE lease_id = 'fa'")
    assert world.run("SELECT slot_id FROM finalization_claims") == [("s",)]
