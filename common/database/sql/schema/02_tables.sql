-- The tables. The state of a command is the table that holds its row: each table has one access
-- pattern and only the indexes for it.

-- Commands that are claimable or claimed now. A claim changes no indexed column, so it is a HOT
-- update; fillfactor leaves room for it on the page (49,000 commands/s with 100, 92,000 with 50).
CREATE TABLE {schema}.ready (
    id bigint GENERATED ALWAYS AS IDENTITY,
    token bigint NOT NULL DEFAULT 0,
    claimer bigint,
    claimed_at timestamptz,
    lease_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at {schema}.finite_time,
    command_id uuid NOT NULL,
    correlation_id uuid NOT NULL,
    priority {schema}.priority NOT NULL,
    attempts smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    max_attempts {schema}.attempt_limit,
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    reply_to {schema}.name,
    data {schema}.payload NOT NULL,
    error_code text,
    error_message text,
    batch_id uuid,
    -- The bus that waits in a call for the command's end; NULL for nearly all.
    caller bigint,
    key {schema}.key,
    unique_key {schema}.key,
    -- Its position in its lane, in which it holds a place; see 14_lanes.sql.
    lane_position bigint,
    -- It is canceled then, unless it was claimed before.
    expires_at {schema}.finite_time,
    -- Claims and settlements find rows by it; no other index may be sorted by id.
    PRIMARY KEY (domain, priority, id)
) WITH (fillfactor = 50);

-- Finds a command; identity keeps it unique. Not led by the domain: sessions that planned while
-- the queue was empty would use such an index instead of the key, and read a whole domain for
-- each row (40 processes, 40,000 commands: 32 million entries read). The row's id, because a role
-- that may send can write any number of rows with one command_id.
CREATE INDEX ready_command ON {schema}.ready (command_id, id);

-- Commands whose claims were lost before. It is empty for all others, whose claims stay HOT.
CREATE INDEX ready_lost ON {schema}.ready (domain, priority, id) WHERE losses > 0;

-- Finds the commands of a batch. Commands without one are not in it.
CREATE INDEX ready_batch ON {schema}.ready (batch_id, created_at, id) WHERE batch_id IS NOT NULL;

-- Counts the places of a lane that are taken. Commands without a limit are not in it.
CREATE INDEX ready_lane ON {schema}.ready (domain, type, (coalesce(key, '')))
    WHERE lane_position IS NOT NULL;

-- Finds the commands of a key.
CREATE INDEX ready_key ON {schema}.ready (domain, key, created_at) WHERE key IS NOT NULL;

-- Those that expire, and some that have begun; see 06_expiring.sql.
CREATE INDEX ready_expires ON {schema}.ready (expires_at)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND losses = 0;

-- Delayed sends and retries, until they are due: a million of them slow no claim.
CREATE TABLE {schema}.scheduled (LIKE {schema}.ready INCLUDING DEFAULTS INCLUDING IDENTITY);
ALTER TABLE {schema}.scheduled
    ALTER COLUMN due_at SET NOT NULL,
    ADD PRIMARY KEY (due_at, id);

-- Domains take turns by it, if more is due than one promotion moves.
CREATE INDEX scheduled_turn ON {schema}.scheduled (domain, priority, due_at, id);

-- Finds a command. Made after scheduled_turn: while the table is empty both seem to cost the same,
-- and the planner takes the newer one, also for the time after that.
CREATE INDEX scheduled_command ON {schema}.scheduled (domain, command_id);

CREATE INDEX scheduled_batch ON {schema}.scheduled (batch_id, created_at, id)
    WHERE batch_id IS NOT NULL;

CREATE INDEX scheduled_lane ON {schema}.scheduled (domain, type, (coalesce(key, '')))
    WHERE lane_position IS NOT NULL;
CREATE INDEX scheduled_key ON {schema}.scheduled (domain, key, created_at) WHERE key IS NOT NULL;
CREATE INDEX scheduled_expires ON {schema}.scheduled (expires_at)
    WHERE expires_at IS NOT NULL AND claimed_at IS NULL;

-- Commands that wait at a limit; see 14_lanes.sql. They have no id before a claim moves them into
-- ready, and a position in their lane, which they keep.
CREATE TABLE {schema}.limited (LIKE {schema}.ready INCLUDING DEFAULTS);
ALTER TABLE {schema}.limited
    ALTER COLUMN id DROP NOT NULL,
    ALTER COLUMN lane_position SET NOT NULL,
    ALTER COLUMN lane_position SET DEFAULT nextval('{schema}.ready_id_seq'),
    -- Finds a command; see ready_command.
    ADD PRIMARY KEY (command_id, lane_position);

-- Gives the next commands of a lane.
CREATE INDEX limited_lane
    ON {schema}.limited (domain, type, (coalesce(key, '')), priority, lane_position);

-- As those of ready.
CREATE INDEX limited_batch ON {schema}.limited (batch_id, created_at, lane_position)
    WHERE batch_id IS NOT NULL;
CREATE INDEX limited_key ON {schema}.limited (domain, key, created_at) WHERE key IS NOT NULL;
CREATE INDEX limited_expires ON {schema}.limited (expires_at)
    WHERE expires_at IS NOT NULL AND claimed_at IS NULL;

-- The state of a lane that a claim has looked at.
CREATE TABLE {schema}.lane (
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When the next start is due by its rate, if each came exactly on time: the theoretical arrival
    -- time of a leaky bucket.
    next_start timestamptz NOT NULL DEFAULT 'epoch',
    -- When its rate lets the first of those that wait start.
    opens_at timestamptz,
    -- The shared limit that it waits for, and since which turn.
    waits_for text COLLATE "C",
    waits_since bigint,
    waits_priority smallint,
    PRIMARY KEY (domain, type, key)
) WITH (fillfactor = 70);

CREATE INDEX lane_opens ON {schema}.lane (domain, type, opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX lane_waits ON {schema}.lane (waits_for, waits_priority, waits_since)
    WHERE waits_for IS NOT NULL;
CREATE INDEX lane_waits_by_type
    ON {schema}.lane (waits_for, domain, type, waits_priority, waits_since)
    WHERE waits_for IS NOT NULL;

-- The state of a limit that several types share. node: 0, or the node for which it counts.
CREATE TABLE {schema}.shared_state (
    name text COLLATE "C",
    node bigint,
    next_start timestamptz NOT NULL DEFAULT 'epoch',
    -- The latest turn that a claim has given to a lane of a type that it does not take.
    offered_domain text COLLATE "C",
    offered_type text COLLATE "C",
    offered_priority smallint,
    offered_turn bigint,
    PRIMARY KEY (name, node)
) WITH (fillfactor = 70);

-- Lanes that claims have to look at, in this order.
CREATE TABLE {schema}.turn (
    id bigint GENERATED ALWAYS AS IDENTITY,
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    key text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    PRIMARY KEY (domain, type, priority, id)
);

-- Commands that need an operator.
CREATE TABLE {schema}.troubleshooting (
    token bigint NOT NULL,
    claimer bigint,
    claimed_at timestamptz,
    created_at timestamptz NOT NULL,
    due_at timestamptz,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    command_id uuid NOT NULL,
    correlation_id uuid NOT NULL,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    losses smallint NOT NULL,
    -- The limit that applied, and the sender's, if any: a retry runs under that.
    max_attempts smallint,
    sent_max_attempts smallint,
    domain text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    reply_to text COLLATE "C",
    data json NOT NULL,
    error_code text,
    error_message text,
    batch_id uuid,
    caller bigint,
    key text COLLATE "C",
    unique_key text COLLATE "C",
    lane_position bigint,
    expires_at timestamptz,
    PRIMARY KEY (domain, command_id)
);

-- Lists the newest first.
CREATE INDEX troubleshooting_newest ON {schema}.troubleshooting (failed_at);

-- Also counts them for their batch.
CREATE INDEX troubleshooting_batch ON {schema}.troubleshooting (batch_id, created_at)
    WHERE batch_id IS NOT NULL;

CREATE INDEX troubleshooting_lane ON {schema}.troubleshooting (domain, type, (coalesce(key, '')))
    WHERE lane_position IS NOT NULL;

-- History, with a partition for each day (UTC), so that retention can drop a day.
CREATE TABLE {schema}.finished (
    token bigint NOT NULL,
    claimer bigint,
    claimed_at timestamptz,
    created_at timestamptz NOT NULL,
    due_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    command_id uuid NOT NULL,
    correlation_id uuid NOT NULL,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    losses smallint NOT NULL,
    max_attempts smallint,
    domain text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    reply_to text COLLATE "C",
    status text NOT NULL,
    data json NOT NULL,
    result json,
    error_code text,
    error_message text,
    batch_id uuid,
    key text COLLATE "C",
    unique_key text COLLATE "C",
    expires_at timestamptz,
    PRIMARY KEY (domain, command_id, finished_at)
) PARTITION BY RANGE (finished_at);

-- query() lists the newest first.
CREATE INDEX finished_newest ON {schema}.finished (created_at);

CREATE INDEX finished_batch ON {schema}.finished (batch_id, status, created_at)
    WHERE batch_id IS NOT NULL;

-- Failed attempts, lost leases, kills with their stack, operators' actions. The normal course of
-- a command leaves none.
CREATE TABLE {schema}.event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimer bigint,
    claimed_at timestamptz,
    token bigint,
    -- The operator's call that left it: the same call repeated does nothing.
    call bigint,
    command_id uuid NOT NULL,
    attempt smallint,
    domain text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    operator text,
    code text,
    message text,
    details json,
    PRIMARY KEY (domain, command_id, id)
);

-- The ids that callers brought, for the whole life of their commands. An id that the INSERT of a
-- send skips is a duplicate, at every isolation level. (With a search of all tables instead, with
-- or without an advisory lock, concurrent senders wrote two rows.)
CREATE TABLE {schema}.identity (
    command_id uuid NOT NULL,
    -- The call that brought it: the same call repeated is no duplicate.
    call bigint,
    domain {schema}.name NOT NULL,
    PRIMARY KEY (domain, command_id)
);

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

-- Worker processes. Each draws its number at random, because a server that was restored to an
-- earlier point would give a number again.
CREATE TABLE {schema}.incarnation (
    id bigint PRIMARY KEY,
    worker text NOT NULL,
    -- The length of its leases.
    lease interval NOT NULL,
    -- That of all workers of a supervisor.
    node bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When retention last saw a session of it.
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Nodes that renew leases, and the types that their workers handle, as 'domain type'. An idle
-- node renews nothing.
CREATE TABLE {schema}.node (
    id bigint PRIMARY KEY,
    lease interval NOT NULL,
    renewed_at timestamptz NOT NULL,
    types text[] COLLATE "C" NOT NULL
);

-- When the leases of a claimer end, because an index on ready for that would change with each
-- claim: none before ends_at, except those that the latest renewal skipped. Written by renewals
-- and once a lease by claims.
CREATE TABLE {schema}.lease (
    claimer bigint PRIMARY KEY,
    length interval NOT NULL,
    ends_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What each node waits for and until when, and the time at which it reads its timers.
CREATE TABLE {schema}.waiter (
    node bigint PRIMARY KEY,
    bits bigint NOT NULL,
    reads_at timestamptz NOT NULL,
    armed_until timestamptz NOT NULL
);

-- How far the ids and events of a day's commands are removed, in blocks of its table. Each block
-- is read once: an id that was removed may be sent again, and then belongs to another command.
CREATE TABLE {schema}.removal (
    name text PRIMARY KEY,
    block bigint NOT NULL DEFAULT 0
);

-- Values outside MVCC: last_value of a sequence, read by a VOLATILE function, is current
-- at every isolation level, survives a rollback and leaves no dead rows:
--   armed            a bit for each domain that a node waits for (see domain_bit)
--   alarm            the earliest time at which a node will read the due commands, in microseconds
--                    since 1970; 0: none will
--   patience         the latest wait for renewals (see waits_for_renewals)
--   longer_patience  one for longer leases that it interrupted
CREATE SEQUENCE {schema}.armed MINVALUE 0;
CREATE SEQUENCE {schema}.alarm MINVALUE 0;
CREATE SEQUENCE {schema}.patience MINVALUE 0;
CREATE SEQUENCE {schema}.longer_patience MINVALUE 0;
SELECT pg_catalog.setval('{schema}.armed', 0::bigint),
    pg_catalog.setval('{schema}.alarm', 0::bigint),
    pg_catalog.setval('{schema}.patience', 0::bigint),
    pg_catalog.setval('{schema}.longer_patience', 0::bigint);

-- One row for each command, wherever it is. A condition reaches the tables' indexes only if a
-- column has the same type in all of them: that of troubleshooting and finished.
CREATE VIEW {schema}.command AS
SELECT c.domain, c.command_id, c.type, c.status, c.priority,
    -- Charged executions, and the running one.
    (c.attempts + CASE WHEN c.status = 'IN_PROGRESS' THEN 1 ELSE 0 END)::integer AS attempts,
    c.max_attempts::integer AS max_attempts,
    c.data, c.result, c.error_code, c.error_message, c.correlation_id, c.reply_to,
    c.batch_id, c.created_at, c.due_at, c.claimed_at AS started_at, c.finished_at, i.worker,
    c.key, c.unique_key, c.expires_at
FROM (
    SELECT domain::text, command_id, type::text,
        CASE WHEN lease_until > clock_timestamp() THEN 'IN_PROGRESS' ELSE 'PENDING' END AS status,
        priority::smallint, attempts, max_attempts::smallint, data::json, NULL::json AS result,
        error_code, error_message, correlation_id, reply_to::text, created_at,
        coalesce(due_at::timestamptz, created_at) AS due_at, claimed_at,
        NULL::timestamptz AS finished_at, claimer, batch_id, key::text, unique_key::text,
        expires_at::timestamptz
    FROM (TABLE {schema}.ready UNION ALL TABLE {schema}.scheduled
          UNION ALL TABLE {schema}.limited) waiting
    UNION ALL
    SELECT domain, command_id, type, 'IN_TROUBLESHOOTING_QUEUE', priority, attempts, max_attempts,
        data, NULL, error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, NULL, claimer, batch_id, key, unique_key,
        expires_at
    FROM {schema}.troubleshooting
    UNION ALL
    SELECT domain, command_id, type, status, priority, attempts, max_attempts, data, result,
        error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, finished_at, claimer, batch_id, key,
        unique_key, expires_at
    FROM {schema}.finished
) c
LEFT JOIN {schema}.incarnation i ON i.id = c.claimer;

-- One row for each batch, with counters that are exact: a command counts in the transaction that
-- ends it.
CREATE VIEW {schema}.batch AS
SELECT b.batch_id, b.domain::text AS domain, b.name::text AS name, b.data::json AS data, b.status,
    b.total + t.total AS total, b.completed + t.completed AS completed,
    b.failed + t.failed AS failed, b.canceled + t.canceled AS canceled,
    (SELECT count(*) FROM {schema}.troubleshooting q WHERE q.batch_id = b.batch_id)
        AS in_troubleshooting,
    b.remaining + t.total - t.completed - t.failed - t.canceled AS remaining,
    b.created_at, b.started_at, b.completed_at
FROM {schema}.batch_state b, LATERAL (
    SELECT coalesce(sum(l.total), 0)::bigint AS total,
        coalesce(sum(l.completed), 0)::bigint AS completed,
        coalesce(sum(l.failed), 0)::bigint AS failed,
        coalesce(sum(l.canceled), 0)::bigint AS canceled
    FROM {schema}.tally l WHERE l.batch_id = b.batch_id
) t;
