-- The tables of domains and of batches.

-- The settings of a domain; a domain without settings has no row.
CREATE TABLE {schema}.domain (
    name {schema}.name PRIMARY KEY,
    accepting boolean NOT NULL DEFAULT true,
    paused boolean NOT NULL DEFAULT false,
    max_depth integer CHECK (max_depth > 0),
    warn_depth integer CHECK (warn_depth > 0),
    max_waiting_per_key integer CHECK (max_waiting_per_key > 0),
    keep interval NOT NULL DEFAULT '7 days'
        CHECK (keep BETWEEN interval '0' AND interval '36525 days'),
    -- When a steward last began to remove history that the domain no longer keeps.
    swept_at timestamptz
);

-- What operators changed in a domain; message is the reason.
CREATE TABLE {schema}.domain_event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- As in event.
    call bigint,
    domain text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    operator text,
    message text,
    details json,
    PRIMARY KEY (domain, id)
);

-- Batches. The counters are without the tally, which is added to them from time to time; remaining
-- is what they leave open. The normal course is read from the times.
CREATE TABLE {schema}.batch_state (
    batch_id uuid PRIMARY KEY,
    -- 0 once all its commands are purged.
    total bigint NOT NULL CHECK (total BETWEEN 0 AND 1000000000000),
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    canceled bigint NOT NULL DEFAULT 0,
    remaining bigint NOT NULL GENERATED ALWAYS AS (total - completed - failed - canceled) STORED,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    cancel_requested_at timestamptz,
    completed_at timestamptz,
    domain {schema}.name NOT NULL,
    status text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
        CASE WHEN completed_at IS NULL AND started_at IS NULL THEN 'PENDING'
             WHEN completed_at IS NULL THEN 'IN_PROGRESS'
             WHEN cancel_requested_at IS NOT NULL THEN 'CANCELED'
             WHEN failed + canceled > 0 THEN 'COMPLETED_WITH_FAILURES'
             ELSE 'COMPLETED' END) STORED,
    name {schema}.remark,
    data {schema}.payload,
    cancel_operator text,
    cancel_reason text,
    on_complete {schema}.request,
    on_cancel {schema}.request
) WITH (fillfactor = 50);

-- Lists the newest first.
CREATE INDEX batch_state_newest ON {schema}.batch_state (created_at);

-- Those whose cancellation has not ended.
CREATE INDEX batch_state_canceling ON {schema}.batch_state (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND completed_at IS NULL;

-- What happened to batches and is not added to their counters yet: a line for each batch in each
-- transaction that ends commands or adds some. A counter that all of them changed would make
-- handlers wait for each other's commits.
CREATE TABLE {schema}.tally (
    id bigint GENERATED ALWAYS AS IDENTITY,
    batch_id uuid NOT NULL,
    total bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    canceled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (batch_id, id)
);
