-- The tables of commands. The state of a command is the table that holds its row: each table has
-- one access pattern and only the indexes for it.

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
    -- NULL for most.
    headers {schema}.headers,
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

-- Finds those that a breaker has kept from a call, by its name: that is the third word of what
-- BreakerOpenError says.
CREATE INDEX scheduled_breaker ON {schema}.scheduled ((split_part(error_message, ' ', 3)))
    WHERE error_code = 'BREAKER_OPEN';

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
    headers {schema}.headers,
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
    headers {schema}.headers,
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

-- How far the ids and events of a day's commands are removed, in blocks of its table. Each block
-- is read once: an id that was removed may be sent again, and then belongs to another command.
CREATE TABLE {schema}.removal (
    name text PRIMARY KEY,
    block bigint NOT NULL DEFAULT 0
);

-- How far the handlers of commands have come. A table of its own: whatever claims, settles or ends
-- a command knows nothing of it, so commands without a checkpoint cost as much as before.
CREATE TABLE {schema}.checkpoint (
    saved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of the command, which tells it from a later one that was given the same id.
    created_at timestamptz NOT NULL,
    command_id uuid NOT NULL,
    domain {schema}.name NOT NULL,
    data {schema}.payload NOT NULL,
    PRIMARY KEY (domain, command_id)
);
