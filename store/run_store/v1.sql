-- Coordination schema of the run store, layout version 1.
--
-- The whole script runs in one immediate transaction against an empty database. Nothing here says
-- IF NOT EXISTS: a table that is already there must stop the initialisation.
--
-- Conventions. Ids are opaque text under the default BINARY collation; SQL never derives one.
-- A column ending in _ns counts nanoseconds since the Unix epoch. A generated column that holds a
-- constant exists only so that a foreign key can demand that constant of its parent. The guards
-- hold against INSERT OR REPLACE only while recursive_triggers is on.
--
-- Order of writes in one transaction: projection (attempts), event, transition. At the end of an
-- attempt: projection, event, transition, delete the claim, release the leases.

-- Planning -----------------------------------------------------------------------------------

CREATE TABLE applicability_decisions (
    decision_id TEXT NOT NULL PRIMARY KEY,
    candidate_id TEXT NOT NULL,
    disposition TEXT NOT NULL
        CONSTRAINT applicability_decisions_disposition
        CHECK (disposition IN ('applicable', 'excluded')),
    record_json TEXT NOT NULL
        CONSTRAINT applicability_decisions_record_is_object
        CHECK (CASE WHEN json_valid(record_json) THEN json_type(record_json) = 'object' ELSE 0 END),
    UNIQUE (decision_id, candidate_id, disposition)
) STRICT;

CREATE TABLE resolved_runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    logical_run_id TEXT NOT NULL,
    candidate_id TEXT NOT NULL,
    decision_id TEXT NOT NULL,
    decision_disposition TEXT NOT NULL GENERATED ALWAYS AS ('applicable') STORED,
    record_json TEXT NOT NULL
        CONSTRAINT resolved_runs_record_is_object
        CHECK (CASE WHEN json_valid(record_json) THEN json_type(record_json) = 'object' ELSE 0 END),
    CONSTRAINT resolved_runs_applicable_decision
        FOREIGN KEY (decision_id, candidate_id, decision_disposition)
        REFERENCES applicability_decisions (decision_id, candidate_id, disposition)
) STRICT;

CREATE TABLE observation_slots (
    slot_id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES resolved_runs (run_id),
    logical_slot_id TEXT NOT NULL,
    kind TEXT NOT NULL
        CONSTRAINT observation_slots_kind
        CHECK (kind IN ('one_shot', 'fresh_observation', 'checkpoint')),
    record_json TEXT NOT NULL
        CONSTRAINT observation_slots_record_is_object
        CHECK (CASE WHEN json_valid(record_json) THEN json_type(record_json) = 'object' ELSE 0 END),
    UNIQUE (run_id, logical_slot_id),
    UNIQUE (slot_id, run_id)
) STRICT;

CREATE TABLE attempt_slots (
    slot_id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES resolved_runs (run_id),
    logical_slot_id TEXT NOT NULL,
    execution_kind TEXT NOT NULL
        CONSTRAINT attempt_slots_execution_kind
        CHECK (execution_kind IN ('one_shot', 'fresh_observation', 'stream')),
    role TEXT NOT NULL
        CONSTRAINT attempt_slots_role
        CHECK (role IN ('measurement', 'warm_up')),
    record_json TEXT NOT NULL
        CONSTRAINT attempt_slots_record_is_object
        CHECK (CASE WHEN json_valid(record_json) THEN json_type(record_json) = 'object' ELSE 0 END),
    UNIQUE (run_id, logical_slot_id),
    UNIQUE (slot_id, run_id, role)
) STRICT;

-- Only a measuring execution owns observation slots, and only inside its own resolved run.
CREATE TABLE attempt_observation_slots (
    observation_slot_id TEXT NOT NULL PRIMARY KEY,
    attempt_slot_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    attempt_slot_role TEXT NOT NULL GENERATED ALWAYS AS ('measurement') STORED,
    UNIQUE (attempt_slot_id, observation_slot_id),
    CONSTRAINT attempt_observation_slots_observation_slot
        FOREIGN KEY (observation_slot_id, run_id)
        REFERENCES observation_slots (slot_id, run_id),
    CONSTRAINT attempt_observation_slots_attempt_slot
        FOREIGN KEY (attempt_slot_id, run_id, attempt_slot_role)
        REFERENCES attempt_slots (slot_id, run_id, role)
) STRICT;

-- Artifacts ----------------------------------------------------------------------------------

CREATE TABLE artifacts (
    artifact_id TEXT NOT NULL PRIMARY KEY
        CONSTRAINT artifacts_id_nonempty CHECK (artifact_id <> ''),
    kind TEXT NOT NULL
        CONSTRAINT artifacts_kind
        CHECK (kind IN ('attempt', 'observation', 'result', 'metrics', 'dataset', 'source',
                        'environment', 'other')),
    entry TEXT NOT NULL
        CONSTRAINT artifacts_entry CHECK (entry IN ('file', 'directory')),
    content_sha256 TEXT NOT NULL
        CONSTRAINT artifacts_content_sha256_is_lowercase_hex
        CHECK (length(CAST(content_sha256 AS BLOB)) = 64
               AND content_sha256 NOT GLOB '*[^0-9a-f]*'),
    path TEXT NOT NULL UNIQUE
        CONSTRAINT artifacts_path_is_normalized
        CHECK (instr('/' || path || '/', '//') = 0
               AND instr('/' || path || '/', '/./') = 0
               AND instr('/' || path || '/', '/../') = 0
               AND instr(path, char(92)) = 0
               AND instr(path, char(0)) = 0),
    manifest_sha256 TEXT
        CONSTRAINT artifacts_manifest_sha256_is_lowercase_hex
        CHECK (manifest_sha256 IS NULL
               OR (length(CAST(manifest_sha256 AS BLOB)) = 64
                   AND manifest_sha256 NOT GLOB '*[^0-9a-f]*')),
    verified_at_ns INTEGER NOT NULL
        CONSTRAINT artifacts_verified_at_nonnegative CHECK (verified_at_ns >= 0),
    UNIQUE (artifact_id, kind),
    CONSTRAINT artifacts_directory_has_manifest
        CHECK ((entry = 'directory') = (manifest_sha256 IS NOT NULL)),
    CONSTRAINT artifacts_records_are_directories
        CHECK (kind NOT IN ('attempt', 'observation') OR entry = 'directory')
) STRICT;

-- Attempts and their history -----------------------------------------------------------------

CREATE TABLE attempts (
    attempt_id TEXT NOT NULL PRIMARY KEY,
    slot_id TEXT NOT NULL REFERENCES attempt_slots (slot_id),
    retry_index INTEGER NOT NULL
        CONSTRAINT attempts_retry_index_range
        CHECK (retry_index BETWEEN 0 AND 9007199254740991),
    state TEXT NOT NULL
        CONSTRAINT attempts_state
        CHECK (state IN ('reserved', 'materializing', 'starting', 'preparing', 'executing',
                         'checkpointing', 'validating', 'evaluating', 'finalizing',
                         'accepted', 'censored', 'superseded', 'failed')),
    revision INTEGER NOT NULL
        CONSTRAINT attempts_revision_range CHECK (revision BETWEEN 0 AND 9007199254740991),
    started_at_ns INTEGER NOT NULL
        CONSTRAINT attempts_started_at_nonnegative CHECK (started_at_ns >= 0),
    changed_at_ns INTEGER NOT NULL
        CONSTRAINT attempts_changed_after_start CHECK (changed_at_ns >= started_at_ns),
    finished_at_ns INTEGER,
    failure_code TEXT
        CONSTRAINT attempts_failure_code_nonempty CHECK (failure_code <> ''),
    final_artifact_id TEXT,
    final_artifact_kind TEXT NOT NULL GENERATED ALWAYS AS ('attempt') STORED,
    UNIQUE (slot_id, retry_index),
    UNIQUE (attempt_id, slot_id),
    UNIQUE (attempt_id, state),
    CONSTRAINT attempts_terminal_is_complete
        CHECK (CASE
                   WHEN state IN ('accepted', 'censored', 'superseded', 'failed')
                   THEN finished_at_ns IS changed_at_ns AND final_artifact_id IS NOT NULL
                   ELSE finished_at_ns IS NULL AND final_artifact_id IS NULL
               END),
    CONSTRAINT attempts_failure_has_code
        CHECK ((state = 'failed') = (failure_code IS NOT NULL)),
    CONSTRAINT attempts_final_artifact
        FOREIGN KEY (final_artifact_id, final_artifact_kind)
        REFERENCES artifacts (artifact_id, kind),
    CONSTRAINT attempts_current_transition
        FOREIGN KEY (attempt_id, revision, state, changed_at_ns)
        REFERENCES attempt_transitions (attempt_id, revision, to_state, at_ns)
        DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE UNIQUE INDEX one_accepted_attempt_per_slot ON attempts (slot_id) WHERE state = 'accepted';

-- A kind that starts with attempt_ tells of one transition; every other kind stands alone.
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY
        CONSTRAINT events_sequence_positive CHECK (sequence >= 1),
    attempt_id TEXT REFERENCES attempts (attempt_id),
    kind TEXT NOT NULL
        CONSTRAINT events_kind
        CHECK (kind <> ''
               AND (kind NOT GLOB 'attempt_*'
                    OR kind IN ('attempt_reserved', 'attempt_transition', 'attempt_finalizing',
                                'attempt_finished'))),
    at_ns INTEGER NOT NULL
        CONSTRAINT events_at_nonnegative CHECK (at_ns >= 0),
    payload_json TEXT NOT NULL
        CONSTRAINT events_payload_is_object
        CHECK (CASE WHEN json_valid(payload_json) THEN json_type(payload_json) = 'object' ELSE 0 END),
    transition_attempt_id TEXT
        GENERATED ALWAYS AS (CASE WHEN kind GLOB 'attempt_*' THEN attempt_id END) STORED,
    UNIQUE (sequence, attempt_id, at_ns, kind),
    CONSTRAINT events_attempt_kind_has_attempt
        CHECK (kind NOT GLOB 'attempt_*' OR attempt_id IS NOT NULL),
    CONSTRAINT events_attempt_kind_has_transition
        FOREIGN KEY (transition_attempt_id, sequence)
        REFERENCES attempt_transitions (attempt_id, event_sequence)
        DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE INDEX events_by_attempt ON events (attempt_id);

CREATE TABLE attempt_transitions (
    attempt_id TEXT NOT NULL REFERENCES attempts (attempt_id),
    revision INTEGER NOT NULL
        CONSTRAINT attempt_transitions_revision_range
        CHECK (revision BETWEEN 0 AND 9007199254740991),
    from_state TEXT,
    to_state TEXT NOT NULL,
    at_ns INTEGER NOT NULL
        CONSTRAINT attempt_transitions_at_nonnegative CHECK (at_ns >= 0),
    previous_revision INTEGER
        GENERATED ALWAYS AS (CASE WHEN revision > 0 THEN revision - 1 END) STORED,
    previous_at_ns INTEGER,
    event_sequence INTEGER NOT NULL UNIQUE,
    event_kind TEXT NOT NULL,
    PRIMARY KEY (attempt_id, revision),
    UNIQUE (attempt_id, revision, to_state, at_ns),
    UNIQUE (attempt_id, event_sequence),
    CONSTRAINT attempt_transitions_time_never_decreases
        CHECK (CASE
                   WHEN revision = 0 THEN previous_at_ns IS NULL
                   ELSE previous_at_ns IS NOT NULL AND at_ns >= previous_at_ns
               END),
    CONSTRAINT attempt_transitions_legal_edge
        CHECK (CASE
                   WHEN revision = 0 THEN from_state IS NULL AND to_state = 'reserved'
                   ELSE CASE from_state
                       WHEN 'reserved' THEN to_state IN ('materializing', 'finalizing')
                       WHEN 'materializing' THEN to_state IN ('starting', 'finalizing')
                       WHEN 'starting' THEN to_state IN ('preparing', 'finalizing')
                       WHEN 'preparing' THEN to_state IN ('executing', 'finalizing')
                       WHEN 'executing' THEN to_state IN ('checkpointing', 'validating', 'finalizing')
                       WHEN 'checkpointing' THEN to_state IN ('validating', 'finalizing')
                       WHEN 'validating' THEN to_state IN ('evaluating', 'finalizing')
                       WHEN 'evaluating' THEN to_state IN ('executing', 'finalizing')
                       WHEN 'finalizing'
                           THEN to_state IN ('accepted', 'censored', 'superseded', 'failed')
                       ELSE 0
                   END
               END),
    CONSTRAINT attempt_transitions_event_kind
        CHECK (CASE
                   WHEN revision = 0 THEN event_kind = 'attempt_reserved'
                   WHEN to_state = 'finalizing'
                       THEN event_kind IN ('attempt_transition', 'attempt_finalizing')
                   WHEN to_state IN ('accepted', 'censored', 'superseded', 'failed')
                       THEN event_kind = 'attempt_finished'
                   ELSE event_kind = 'attempt_transition'
               END),
    CONSTRAINT attempt_transitions_predecessor
        FOREIGN KEY (attempt_id, previous_revision, from_state, previous_at_ns)
        REFERENCES attempt_transitions (attempt_id, revision, to_state, at_ns),
    CONSTRAINT attempt_transitions_event
        FOREIGN KEY (event_sequence, attempt_id, at_ns, event_kind)
        REFERENCES events (sequence, attempt_id, at_ns, kind)
) STRICT;

-- Leases and claims --------------------------------------------------------------------------

CREATE TABLE leases (
    lease_id TEXT NOT NULL PRIMARY KEY
        CONSTRAINT leases_id_nonempty CHECK (lease_id <> ''),
    owner_token TEXT NOT NULL
        CONSTRAINT leases_owner_token_nonempty CHECK (owner_token <> ''),
    attempt_id TEXT REFERENCES attempts (attempt_id),
    purpose TEXT NOT NULL
        CONSTRAINT leases_purpose CHECK (purpose IN ('reservation', 'finalization', 'staging')),
    acquired_at_ns INTEGER NOT NULL
        CONSTRAINT leases_acquired_at_nonnegative CHECK (acquired_at_ns >= 0),
    expires_at_ns INTEGER NOT NULL
        CONSTRAINT leases_expire_after_acquisition CHECK (expires_at_ns > acquired_at_ns),
    released_at_ns INTEGER
        CONSTRAINT leases_released_after_acquisition CHECK (released_at_ns >= acquired_at_ns),
    staging_path TEXT
        CONSTRAINT leases_staging_path_is_normalized
        CHECK (instr('/' || staging_path || '/', '//') = 0
               AND instr('/' || staging_path || '/', '/./') = 0
               AND instr('/' || staging_path || '/', '/../') = 0
               AND instr(staging_path, char(92)) = 0
               AND instr(staging_path, char(0)) = 0),
    UNIQUE (lease_id, attempt_id, purpose),
    CONSTRAINT leases_staging_has_path
        CHECK ((purpose = 'staging') = (staging_path IS NOT NULL)),
    CONSTRAINT leases_ownership_has_attempt
        CHECK (purpose = 'staging' OR attempt_id IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX one_ownership_lease_per_attempt
    ON leases (attempt_id, purpose) WHERE purpose <> 'staging';

CREATE UNIQUE INDEX one_live_lease_per_staging_path
    ON leases (staging_path) WHERE released_at_ns IS NULL;

CREATE INDEX leases_by_attempt ON leases (attempt_id, purpose);

-- The deferred key makes a claim whose attempt is no longer finalizing impossible to commit.
CREATE TABLE finalization_claims (
    slot_id TEXT NOT NULL PRIMARY KEY,
    attempt_id TEXT NOT NULL UNIQUE,
    attempt_state TEXT NOT NULL GENERATED ALWAYS AS ('finalizing') STORED,
    lease_id TEXT NOT NULL UNIQUE,
    lease_purpose TEXT NOT NULL GENERATED ALWAYS AS ('finalization') STORED,
    CONSTRAINT finalization_claims_attempt_of_slot
        FOREIGN KEY (attempt_id, slot_id) REFERENCES attempts (attempt_id, slot_id),
    CONSTRAINT finalization_claims_lease_of_attempt
        FOREIGN KEY (lease_id, attempt_id, lease_purpose)
        REFERENCES leases (lease_id, attempt_id, purpose),
    CONSTRAINT finalization_claims_attempt_is_finalizing
        FOREIGN KEY (attempt_id, attempt_state) REFERENCES attempts (attempt_id, state)
        DEFERRABLE INITIALLY DEFERRED
) STRICT;

-- Observations -------------------------------------------------------------------------------

CREATE TABLE observations (
    observation_id TEXT NOT NULL PRIMARY KEY,
    slot_id TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    attempt_slot_id TEXT NOT NULL,
    valid INTEGER NOT NULL
        CONSTRAINT observations_valid CHECK (valid IN (0, 1)),
    completion TEXT NOT NULL
        CONSTRAINT observations_completion CHECK (completion IN ('reached', 'not_reached')),
    artifact_id TEXT NOT NULL,
    artifact_kind TEXT NOT NULL GENERATED ALWAYS AS ('observation') STORED,
    registered_at_ns INTEGER NOT NULL
        CONSTRAINT observations_registered_at_nonnegative CHECK (registered_at_ns >= 0),
    record_json TEXT NOT NULL
        CONSTRAINT observations_record_is_object
        CHECK (CASE WHEN json_valid(record_json) THEN json_type(record_json) = 'object' ELSE 0 END),
    UNIQUE (observation_id, slot_id, valid),
    CONSTRAINT observations_declared_membership
        FOREIGN KEY (attempt_slot_id, slot_id)
        REFERENCES attempt_observation_slots (attempt_slot_id, observation_slot_id),
    CONSTRAINT observations_producer_of_slot
        FOREIGN KEY (attempt_id, attempt_slot_id) REFERENCES attempts (attempt_id, slot_id),
    CONSTRAINT observations_directory
        FOREIGN KEY (artifact_id, artifact_kind) REFERENCES artifacts (artifact_id, kind)
) STRICT;

CREATE INDEX observations_by_slot ON observations (slot_id, attempt_id);

CREATE TABLE selected_observations (
    slot_id TEXT NOT NULL PRIMARY KEY,
    observation_id TEXT NOT NULL UNIQUE,
    valid INTEGER NOT NULL GENERATED ALWAYS AS (1) STORED,
    CONSTRAINT selected_observations_valid_observation_of_slot
        FOREIGN KEY (observation_id, slot_id, valid)
        REFERENCES observations (observation_id, slot_id, valid)
) STRICT;

-- References that keep artifacts -------------------------------------------------------------

CREATE TABLE attempt_artifacts (
    attempt_id TEXT NOT NULL REFERENCES attempts (attempt_id),
    role TEXT NOT NULL
        CONSTRAINT attempt_artifacts_role_nonempty CHECK (role <> ''),
    artifact_id TEXT NOT NULL REFERENCES artifacts (artifact_id),
    PRIMARY KEY (attempt_id, role, artifact_id)
) STRICT;

CREATE TABLE observation_artifacts (
    observation_id TEXT NOT NULL REFERENCES observations (observation_id),
    role TEXT NOT NULL
        CONSTRAINT observation_artifacts_role_nonempty CHECK (role <> ''),
    artifact_id TEXT NOT NULL REFERENCES artifacts (artifact_id),
    PRIMARY KEY (observation_id, role, artifact_id)
) STRICT;

CREATE TABLE leased_artifacts (
    lease_id TEXT NOT NULL REFERENCES leases (lease_id),
    artifact_id TEXT NOT NULL REFERENCES artifacts (artifact_id),
    PRIMARY KEY (lease_id, artifact_id)
) STRICT;

-- Guards of attempts, leases and claims ------------------------------------------------------

CREATE TRIGGER attempts_insert_guard BEFORE INSERT ON attempts
BEGIN
    SELECT CASE
        WHEN NEW.state <> 'reserved' OR NEW.revision <> 0
            OR NEW.changed_at_ns <> NEW.started_at_ns
        THEN RAISE(ABORT, 'attempts: a new attempt is reserved, at revision 0')
        WHEN EXISTS (SELECT 1 FROM attempts
                     WHERE slot_id = NEW.slot_id AND state = 'accepted')
        THEN RAISE(ABORT, 'attempts: a satisfied slot takes no new attempt')
    END;
END;

CREATE TRIGGER attempts_update_guard BEFORE UPDATE ON attempts
BEGIN
    SELECT CASE
        WHEN OLD.state IN ('accepted', 'censored', 'superseded', 'failed')
        THEN RAISE(ABORT, 'attempts: a terminal attempt cannot change')
        WHEN NEW.attempt_id <> OLD.attempt_id OR NEW.slot_id <> OLD.slot_id
            OR NEW.retry_index <> OLD.retry_index OR NEW.started_at_ns <> OLD.started_at_ns
        THEN RAISE(ABORT, 'attempts: id, slot, retry index and start time cannot change')
        WHEN NEW.revision <> OLD.revision + 1
        THEN RAISE(ABORT, 'attempts: the revision grows by exactly one')
        WHEN NEW.changed_at_ns < OLD.changed_at_ns
        THEN RAISE(ABORT, 'attempts: the transition time cannot decrease')
        WHEN NEW.state = 'accepted'
            AND NOT EXISTS (SELECT 1 FROM finalization_claims
                            WHERE slot_id = NEW.slot_id AND attempt_id = NEW.attempt_id)
        THEN RAISE(ABORT, 'attempts: acceptance requires the finalization claim')
    END;
END;

CREATE TRIGGER attempts_delete_guard BEFORE DELETE ON attempts
BEGIN
    SELECT RAISE(ABORT, 'attempts: an attempt cannot be deleted');
END;

CREATE TRIGGER attempt_transitions_insert_guard BEFORE INSERT ON attempt_transitions
WHEN NOT EXISTS (SELECT 1 FROM attempts
                 WHERE attempt_id = NEW.attempt_id AND revision = NEW.revision
                   AND state = NEW.to_state AND changed_at_ns = NEW.at_ns)
BEGIN
    SELECT RAISE(ABORT, 'attempt_transitions: a transition records the current projection');
END;

CREATE TRIGGER leases_update_guard BEFORE UPDATE ON leases
BEGIN
    SELECT CASE
        WHEN OLD.released_at_ns IS NOT NULL
        THEN RAISE(ABORT, 'leases: a released lease cannot change')
        WHEN NEW.owner_token <> OLD.owner_token
        THEN RAISE(ABORT, 'leases: the owner token cannot change')
        WHEN NEW.lease_id <> OLD.lease_id OR NEW.attempt_id IS NOT OLD.attempt_id
            OR NEW.purpose <> OLD.purpose OR NEW.acquired_at_ns <> OLD.acquired_at_ns
            OR NEW.staging_path IS NOT OLD.staging_path
        THEN RAISE(ABORT, 'leases: id, attempt, purpose, acquisition and stage cannot change')
        WHEN NEW.expires_at_ns < OLD.expires_at_ns
        THEN RAISE(ABORT, 'leases: a renewal cannot shorten the lease')
    END;
END;

CREATE TRIGGER leases_delete_guard BEFORE DELETE ON leases
BEGIN
    SELECT RAISE(ABORT, 'leases: a lease cannot be deleted');
END;

CREATE TRIGGER finalization_claims_insert_guard BEFORE INSERT ON finalization_claims
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT 1 FROM attempts
                     WHERE slot_id = NEW.slot_id AND state = 'accepted')
        THEN RAISE(ABORT, 'finalization_claims: an accepted slot cannot be claimed')
        WHEN NOT EXISTS (SELECT 1 FROM attempts
                         WHERE attempt_id = NEW.attempt_id AND state = 'finalizing')
        THEN RAISE(ABORT, 'finalization_claims: only a finalizing attempt can claim')
        WHEN EXISTS (SELECT 1 FROM leases
                     WHERE lease_id = NEW.lease_id AND released_at_ns IS NOT NULL)
        THEN RAISE(ABORT, 'finalization_claims: a released lease cannot hold a claim')
        WHEN NOT EXISTS (SELECT 1
                         FROM leases AS held
                         JOIN leases AS reserved ON reserved.owner_token = held.owner_token
                         WHERE held.lease_id = NEW.lease_id
                           AND reserved.attempt_id = NEW.attempt_id
                           AND reserved.purpose = 'reservation')
        THEN RAISE(ABORT, 'finalization_claims: the lease belongs to the reservation owner')
    END;
END;

CREATE TRIGGER finalization_claims_update_guard BEFORE UPDATE ON finalization_claims
BEGIN
    SELECT RAISE(ABORT, 'finalization_claims: a claim cannot change');
END;

CREATE TRIGGER finalization_claims_delete_guard BEFORE DELETE ON finalization_claims
WHEN EXISTS (SELECT 1 FROM attempts
             WHERE attempt_id = OLD.attempt_id
               AND state NOT IN ('accepted', 'censored', 'superseded', 'failed'))
BEGIN
    SELECT RAISE(ABORT, 'finalization_claims: the attempt of the claim is not terminal');
END;

CREATE TRIGGER leased_artifacts_insert_guard BEFORE INSERT ON leased_artifacts
WHEN EXISTS (SELECT 1 FROM leases
             WHERE lease_id = NEW.lease_id AND released_at_ns IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'leased_artifacts: a released lease protects nothing');
END;

-- Insert-only tables -------------------------------------------------------------------------

CREATE TRIGGER applicability_decisions_update_guard BEFORE UPDATE ON applicability_decisions
BEGIN
    SELECT RAISE(ABORT, 'applicability_decisions: insert-only, no update');
END;

CREATE TRIGGER applicability_decisions_delete_guard BEFORE DELETE ON applicability_decisions
BEGIN
    SELECT RAISE(ABORT, 'applicability_decisions: insert-only, no delete');
END;

CREATE TRIGGER resolved_runs_update_guard BEFORE UPDATE ON resolved_runs
BEGIN
    SELECT RAISE(ABORT, 'resolved_runs: insert-only, no update');
END;

CREATE TRIGGER resolved_runs_delete_guard BEFORE DELETE ON resolved_runs
BEGIN
    SELECT RAISE(ABORT, 'resolved_runs: insert-only, no delete');
END;

CREATE TRIGGER observation_slots_update_guard BEFORE UPDATE ON observation_slots
BEGIN
    SELECT RAISE(ABORT, 'observation_slots: insert-only, no update');
END;

CREATE TRIGGER observation_slots_delete_guard BEFORE DELETE ON observation_slots
BEGIN
    SELECT RAISE(ABORT, 'observation_slots: insert-only, no delete');
END;

CREATE TRIGGER attempt_slots_update_guard BEFORE UPDATE ON attempt_slots
BEGIN
    SELECT RAISE(ABORT, 'attempt_slots: insert-only, no update');
END;

CREATE TRIGGER attempt_slots_delete_guard BEFORE DELETE ON attempt_slots
BEGIN
    SELECT RAISE(ABORT, 'attempt_slots: insert-only, no delete');
END;

CREATE TRIGGER attempt_observation_slots_update_guard BEFORE UPDATE ON attempt_observation_slots
BEGIN
    SELECT RAISE(ABORT, 'attempt_observation_slots: insert-only, no update');
END;

CREATE TRIGGER attempt_observation_slots_delete_guard BEFORE DELETE ON attempt_observation_slots
BEGIN
    SELECT RAISE(ABORT, 'attempt_observation_slots: insert-only, no delete');
END;

CREATE TRIGGER artifacts_update_guard BEFORE UPDATE ON artifacts
BEGIN
    SELECT RAISE(ABORT, 'artifacts: insert-only, no update');
END;

CREATE TRIGGER artifacts_delete_guard BEFORE DELETE ON artifacts
BEGIN
    SELECT RAISE(ABORT, 'artifacts: insert-only, no delete');
END;

CREATE TRIGGER events_update_guard BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events: insert-only, no update');
END;

CREATE TRIGGER events_delete_guard BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'events: insert-only, no delete');
END;

CREATE TRIGGER attempt_transitions_update_guard BEFORE UPDATE ON attempt_transitions
BEGIN
    SELECT RAISE(ABORT, 'attempt_transitions: insert-only, no update');
END;

CREATE TRIGGER attempt_transitions_delete_guard BEFORE DELETE ON attempt_transitions
BEGIN
    SELECT RAISE(ABORT, 'attempt_transitions: insert-only, no delete');
END;

CREATE TRIGGER observations_update_guard BEFORE UPDATE ON observations
BEGIN
    SELECT RAISE(ABORT, 'observations: insert-only, no update');
END;

CREATE TRIGGER observations_delete_guard BEFORE DELETE ON observations
BEGIN
    SELECT RAISE(ABORT, 'observations: insert-only, no delete');
END;

CREATE TRIGGER selected_observations_update_guard BEFORE UPDATE ON selected_observations
BEGIN
    SELECT RAISE(ABORT, 'selected_observations: insert-only, no update');
END;

CREATE TRIGGER selected_observations_delete_guard BEFORE DELETE ON selected_observations
BEGIN
    SELECT RAISE(ABORT, 'selected_observations: insert-only, no delete');
END;

CREATE TRIGGER attempt_artifacts_update_guard BEFORE UPDATE ON attempt_artifacts
BEGIN
    SELECT RAISE(ABORT, 'attempt_artifacts: insert-only, no update');
END;

CREATE TRIGGER attempt_artifacts_delete_guard BEFORE DELETE ON attempt_artifacts
BEGIN
    SELECT RAISE(ABORT, 'attempt_artifacts: insert-only, no delete');
END;

CREATE TRIGGER observation_artifacts_update_guard BEFORE UPDATE ON observation_artifacts
BEGIN
    SELECT RAISE(ABORT, 'observation_artifacts: insert-only, no update');
END;

CREATE TRIGGER observation_artifacts_delete_guard BEFORE DELETE ON observation_artifacts
BEGIN
    SELECT RAISE(ABORT, 'observation_artifacts: insert-only, no delete');
END;

CREATE TRIGGER leased_artifacts_update_guard BEFORE UPDATE ON leased_artifacts
BEGIN
    SELECT RAISE(ABORT, 'leased_artifacts: insert-only, no update');
END;

CREATE TRIGGER leased_artifacts_delete_guard BEFORE DELETE ON leased_artifacts
BEGIN
    SELECT RAISE(ABORT, 'leased_artifacts: insert-only, no delete');
END;

PRAGMA user_version = 1;
