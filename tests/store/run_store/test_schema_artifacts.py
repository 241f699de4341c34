"""
Artifacts: what a row may say, and what may refer to it.
"""

import pytest
from run_store_schema_world import TERMINAL, World

FOREIGN_KEY = "FOREIGN KEY constraint failed"

DIGEST = "0123456789abcdef" * 4

NOT_DIGESTS = (
    "",
    DIGEST[:-1],
    DIGEST + "0",
    DIGEST.upper(),
    "g" * 64,
    DIGEST[:-1] + "é",
    DIGEST + "\0z",
    "sha256:" + DIGEST,
)

BAD_PATHS = (
    "",
    "/",
    "/artifacts/y",
    "artifacts//y",
    "artifacts/y/",
    ".",
    "./y",
    "artifacts/./y",
    "artifacts/.",
    "..",
    "../y",
    "artifacts/../y",
    "artifacts/..",
    "artifacts\\y",
    "artifacts/y\0",
)

GOOD_PATHS = ("y", "artifacts/y", "artifacts/.y", "artifacts/..y", "artifacts/y..", "a/b/c/d")


@pytest.fixture
def world() -> World:
    world = World()
    world.plan()
    world.store_artifacts()
    return world


@pytest.mark.parametrize(
    "kind",
    [
        "attempt",
        "dataset",
        "environment",
        "metrics",
        "observation",
        "other",
        "result",
        "source",
    ],
)
def test_artifact_takes_each_kind(world: World, kind: str) -> None:
    """RS-053: there are eight kinds of artifact."""
    with world.committed():
        world.insert("artifacts", artifact_id="y", path="y", kind=kind)


def test_artifact_refuses_another_kind(world: World) -> None:
    """RS-053: an artifact of no known kind is refused, staging among them."""
    with world.refused("CHECK constraint failed: artifacts_kind"):
        world.insert("artifacts", artifact_id="y", path="y", kind="staging")


@pytest.mark.parametrize("digest", NOT_DIGESTS)
@pytest.mark.parametrize("column", ["content_sha256", "manifest_sha256"])
def test_digest_is_lowercase_sha256(world: World, column: str, digest: str) -> None:
    """RS-064: whatever is not 64 lowercase hex digits is no digest."""
    with world.refused(f"CHECK constraint failed: artifacts_{column}_is_lowercase_hex"):
        world.insert("artifacts", artifact_id="y", path="y", **{column: digest})


@pytest.mark.parametrize("path", BAD_PATHS)
def test_path_that_is_not_normalized_is_refused(world: World, path: str) -> None:
    """RS-064: absolute, escaping and unnormalized paths are refused."""
    with world.refused("CHECK constraint failed: artifacts_path_is_normalized"):
        world.insert("artifacts", artifact_id="y", path=path)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_staging_path_that_is_not_normalized_is_refused(world: World, path: str) -> None:
    """RS-064: a stage's path obeys the same rules as an object's."""
    with world.refused("CHECK constraint failed: leases_staging_path_is_normalized"):
        world.insert("leases", attempt_id=None, purpose="staging", staging_path=path)


@pytest.mark.parametrize("path", GOOD_PATHS)
def test_normalized_path_is_accepted(world: World, path: str) -> None:
    """RS-064: a relative path is normalized even where its names hold dots."""
    with world.committed():
        world.insert("artifacts", artifact_id="y", path=path)
        world.insert("leases", attempt_id=None, purpose="staging", staging_path=path)


def test_path_names_one_artifact(world: World) -> None:
    """RS-053: two artifacts cannot share a path."""
    with world.refused("UNIQUE constraint failed: artifacts.path"):
        world.insert("artifacts", artifact_id="y")


def test_directory_needs_its_manifest(world: World) -> None:
    """RS-064: a directory has a manifest digest and a file has none."""
    rule = "CHECK constraint failed: artifacts_directory_has_manifest"
    with world.refused(rule):
        world.insert("artifacts", artifact_id="y", path="y", manifest_sha256=None)
    with world.refused(rule):
        world.insert("artifacts", artifact_id="y", path="y", entry="file")
    with world.committed():
        world.insert("artifacts", artifact_id="y", path="y", entry="file", manifest_sha256=None)


@pytest.mark.parametrize("kind", ["attempt", "observation"])
def test_final_objects_are_directories(world: World, kind: str) -> None:
    """RS-053: attempts and observations are published as directories."""
    with world.refused("CHECK constraint failed: artifacts_records_are_directories"):
        world.insert(
            "artifacts", artifact_id="y", path="y", kind=kind, entry="file", manifest_sha256=None
        )


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"artifact_id": ""}, "artifacts_id_nonempty"),
        ({"entry": "symlink"}, "artifacts_entry"),
        ({"verified_at_ns": -1}, "artifacts_verified_at_nonnegative"),
    ],
)
def test_artifact_refuses_values_out_of_range(
    world: World, values: dict[str, object], rule: str
) -> None:
    """RS-053 RS-060: an artifact has an id, is a file or directory, and was verified in time."""
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert("artifacts", **{"artifact_id": "y", "path": "y", **values})


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize("artifact_id", ["x", "xo", "missing"])
def test_final_artifact_is_of_kind_attempt(world: World, state: str, artifact_id: str) -> None:
    """RS-072: only a registered artifact of kind attempt ends an attempt."""
    world.reserve()
    world.reach("finalizing")
    world.claim()
    with world.refused(FOREIGN_KEY):
        world.move(state, final_artifact_id=artifact_id)
        world.run("DELETE FROM finalization_claims")
    with world.committed():
        world.move(state)
        world.run("DELETE FROM finalization_claims")


def test_attempt_keeps_named_references(world: World) -> None:
    """RS-054: an attempt refers to artifacts by role, to several under one role."""
    world.reserve()
    with world.committed():
        world.insert("attempt_artifacts", role="dataset")
        world.insert("attempt_artifacts", role="source")
        world.insert("attempt_artifacts", role="dataset", artifact_id="xo")
    with world.refused(
        "UNIQUE constraint failed: attempt_artifacts.attempt_id,"
        " attempt_artifacts.role, attempt_artifacts.artifact_id"
    ):
        world.insert("attempt_artifacts", role="dataset")


@pytest.mark.parametrize("values", [{"attempt_id": "b"}, {"artifact_id": "missing"}])
def test_attempt_reference_needs_both_ends(world: World, values: dict[str, str]) -> None:
    """RS-054: a reference joins a reserved attempt with a registered artifact."""
    world.reserve()
    with world.refused(FOREIGN_KEY):
        world.insert("attempt_artifacts", **values)


def test_references_need_a_role(world: World) -> None:
    """RS-054 RS-055: a reference without a role is refused."""
    world.reserve()
    with world.committed():
        world.insert("observations")
    with world.refused("CHECK constraint failed: attempt_artifacts_role_nonempty"):
        world.insert("attempt_artifacts", role="")
    with world.refused("CHECK constraint failed: observation_artifacts_role_nonempty"):
        world.insert("observation_artifacts", role="")


def test_observation_keeps_named_references(world: World) -> None:
    """RS-055: an observation refers to artifacts by role, once under each role."""
    world.reserve()
    with world.committed():
        world.insert("observations")
        world.insert("observation_artifacts", role="result")
        world.insert("observation_artifacts", role="metrics")
    with world.refused(
        "UNIQUE constraint failed: observation_artifacts.observation_id,"
        " observation_artifacts.role, observation_artifacts.artifact_id"
    ):
        world.insert("observation_artifacts", role="metrics")


@pytest.mark.parametrize("values", [{"observation_id": "ob2"}, {"artifact_id": "missing"}])
def test_observation_reference_needs_both_ends(world: World, values: dict[str, str]) -> None:
    """RS-055: a reference joins a registered observation with a registered artifact."""
    world.reserve()
    with world.committed():
        world.insert("observations")
    with world.refused(FOREIGN_KEY):
        world.insert("observation_artifacts", **values)


def test_lease_protects_an_unreferenced_artifact(world: World) -> None:
    """RS-056: a live lease roots an artifact that no record refers to, once."""
    world.reserve()
    with world.committed():
        world.insert("leased_artifacts", lease_id="la")
    with world.refused(
        "UNIQUE constraint failed: leased_artifacts.lease_id, leased_artifacts.artifact_id"
    ):
        world.insert("leased_artifacts", lease_id="la")


@pytest.mark.parametrize("values", [{"lease_id": "l2"}, {"artifact_id": "missing"}])
def test_leased_root_needs_both_ends(world: World, values: dict[str, str]) -> None:
    """RS-056: a root joins a lease with a registered artifact."""
    world.reserve()
    with world.refused(FOREIGN_KEY):
        world.insert("leased_artifacts", **{"lease_id": "la", **values})


def test_released_lease_protects_nothing(world: World) -> None:
    """RS-056: a released lease takes no root, and keeps those that it had."""
    world.reserve()
    with world.committed():
        world.insert("leased_artifacts", lease_id="la")
    with world.committed():
        world.run("UPDATE leases SET released_at_ns = 50")
    with world.refused("leased_artifacts: a released lease protects nothing"):
        world.insert("leased_artifacts", lease_id="la", artifact_id="xo")
    assert world.run("SELECT * FROM leased_artifacts") == [("la", "x")]
