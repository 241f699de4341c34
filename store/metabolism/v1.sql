-- The metabolism runtime, version 1: jobs under leases, their runs, and an append-only blackboard.
-- Times are integer nanoseconds since 1970 (UTC); a lease has lapsed when its time is before now.
-- Torn pairs of rows (a running job without a run, say) are admitted: reconciliation must be able
-- to read what a broken runtime has left.

CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    provider TEXT NOT NULL,
    params_json TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    not_before_ns INTEGER NOT NULL,
    claim_owner TEXT,
    claim_expires_at_ns INTEGER,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    created_at_ns INTEGER NOT NULL,
    updated_at_ns INTEGER NOT NULL,
    CONSTRAINT jobs_kind CHECK (kind <> ''),
    CONSTRAINT jobs_params CHECK (json_valid(params_json) AND json_type(params_json) = 'object'),
    CONSTRAINT jobs_key CHECK (idempotency_key <> ''),
    CONSTRAINT jobs_state CHECK (
        state IN ('queued', 'claimed', 'running', 'recoverable', 'completed', 'failed')
    ),
    CONSTRAINT jobs_priority CHECK (priority >= 0),
    CONSTRAINT jobs_attempts CHECK (attempts >= 0),
    CONSTRAINT jobs_lease_is_whole CHECK ((claim_owner IS NULL) = (claim_expires_at_ns IS NULL)),
    CONSTRAINT jobs_claimed_is_leased CHECK (state <> 'claimed' OR claim_owner IS NOT NULL),
    CONSTRAINT jobs_waiting_is_free CHECK (
        state NOT IN ('queued', 'recoverable') OR claim_owner IS NULL
    )
) STRICT;

CREATE UNIQUE INDEX idx_jobs_active_idempotency ON jobs (idempotency_key)
    WHERE state IN ('queued', 'claimed', 'running', 'recoverable');

-- What claim_next_job takes next is the first entry that is due.
CREATE INDEX idx_jobs_waiting ON jobs (priority, created_at_ns, job_id, not_before_ns)
    WHERE state IN ('queued', 'recoverable');

-- What requeue_expired_jobs and reconcile look at.
CREATE INDEX idx_jobs_held ON jobs (claim_expires_at_ns)
    WHERE state IN ('claimed', 'running');

CREATE TABLE runs (
    run_id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL,
    started_at_ns INTEGER NOT NULL,
    completed_at_ns INTEGER,
    return_code INTEGER,
    log_path TEXT,
    CONSTRAINT runs_attempt CHECK (attempt >= 1),
    CONSTRAINT runs_completion_is_whole CHECK ((completed_at_ns IS NULL) = (return_code IS NULL)),
    CONSTRAINT runs_log_path CHECK (log_path <> '')
) STRICT;

-- Holds the rowid too: the newest run of a job is the last entry.
CREATE INDEX idx_runs_job ON runs (job_id);

CREATE TABLE blackboard_claim_events (
    event_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    predicate TEXT NOT NULL,
    object TEXT NOT NULL,
    assertion_id INTEGER REFERENCES blackboard_claim_events (event_id),
    payload_json TEXT NOT NULL,
    created_at_ns INTEGER NOT NULL,
    CONSTRAINT blackboard_kind CHECK (
        kind IN ('claim_asserted', 'claim_contradicted', 'claim_expired', 'claim_superseded')
    ),
    CONSTRAINT blackboard_claim CHECK (claim_id <> ''),
    CONSTRAINT blackboard_assertion_invalidates_nothing CHECK (
        kind <> 'claim_asserted' OR assertion_id IS NULL
    ),
    CONSTRAINT blackboard_payload CHECK (
        json_valid(payload_json) AND json_type(payload_json) = 'object'
    )
) STRICT;

CREATE TRIGGER blackboard_claim_events_no_update BEFORE UPDATE ON blackboard_claim_events
BEGIN
    SELECT RAISE(ABORT, 'blackboard_claim_events: an event is never changed; append another');
END;

CREATE TRIGGER blackboard_claim_events_no_delete BEFORE DELETE ON blackboard_claim_events
BEGIN
    SELECT RAISE(ABORT, 'blackboard_claim_events: an event is never removed; append another');
END;
