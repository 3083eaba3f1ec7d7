-- Where commands are. A command's state is the table that holds its row; each
-- table has one access pattern and only the indexes for it.

-- What comes in from a sender has one of these types. A domain's condition is checked where
-- a value of another type is converted to it: once, when a row is written, and neither when
-- a claim updates the row nor when the row moves to another table. Conditions of a table are
-- checked at every update. The limits are those of checks.py, data.py and requests.py.
-- (As one regular expression with {0,99}, 2.5 us instead of 0.2.)
CREATE DOMAIN {schema}.name AS text COLLATE "C"
    CHECK (octet_length(VALUE) <= 100 AND VALUE ~ '^[A-Za-z][A-Za-z0-9_.:-]*$');
-- The largest that max_bytes may be, so that a row fits into the memory of each process that
-- reads it; and 1,024 bytes for what a reply has around its result.
CREATE DOMAIN {schema}.payload AS json CHECK (octet_length(VALUE::text) <= 16777216 + 1024);
-- What a datetime of Python holds.
CREATE DOMAIN {schema}.finite_time AS timestamptz
    CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');
CREATE DOMAIN {schema}.priority AS smallint CHECK (VALUE BETWEEN 0 AND 10);
CREATE DOMAIN {schema}.attempt_limit AS smallint CHECK (VALUE > 0);
-- A reason or an operator's name: 2,000 characters, of which escapes make up to six.
CREATE DOMAIN {schema}.remark AS text CHECK (length(VALUE) <= 12000);
-- An operator of another role for such a type would match better than PostgreSQL's own.
REVOKE USAGE ON DOMAIN {schema}.name, {schema}.payload, {schema}.finite_time, {schema}.priority,
    {schema}.attempt_limit, {schema}.remark FROM PUBLIC;

-- Claimable or claimed now. Claiming touches no indexed column, so that it is a
-- HOT update, and fillfactor leaves the room for it on the same page (measured:
-- 49,000 commands a second with 100, 92,000 with 50).
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
    -- To claim and to settle by; nothing else may sort by id.
    PRIMARY KEY (domain, priority, id)
) WITH (fillfactor = 50);

-- To find by. Uniqueness is the business of identity. Not led by the domain: sessions that
-- planned their claims and settlements while the queue was empty would take this index for
-- as good as the key, and walk over a whole domain for each row (40 processes, 40,000
-- commands: 32 million entries read).
CREATE INDEX ready_command ON {schema}.ready (command_id);
-- The few that were lost before; empty for all others, whose claims stay HOT.
CREATE INDEX ready_lost ON {schema}.ready (domain, priority, id) WHERE losses > 0;

-- Delayed sends and retries, until they are due. A heap of its own: a million
-- commands of the future slow no claim, and an urgent one starves none.
CREATE TABLE {schema}.scheduled (
    id bigint GENERATED ALWAYS AS IDENTITY,
    token bigint NOT NULL DEFAULT 0,
    claimer bigint,
    claimed_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at {schema}.finite_time NOT NULL,
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
    PRIMARY KEY (due_at, id)
);

CREATE INDEX scheduled_command ON {schema}.scheduled (domain, command_id);
-- To take turns by, where more is due than one promotion moves.
CREATE INDEX scheduled_turn ON {schema}.scheduled (domain, priority, due_at, id);

-- What needs a person.
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
    -- The limit that applied, and the one that the sender gave, if any: a retry runs under
    -- that, or under the handler's policy of then.
    max_attempts smallint,
    sent_max_attempts smallint,
    domain text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    reply_to text COLLATE "C",
    data json NOT NULL,
    error_code text,
    error_message text,
    PRIMARY KEY (domain, command_id)
);

CREATE INDEX troubleshooting_newest ON {schema}.troubleshooting (failed_at);

-- History, a partition for each day (UTC), so that retention is dropping one.
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
    PRIMARY KEY (domain, command_id, finished_at)
) PARTITION BY RANGE (finished_at);

-- For query(): the newest first.
CREATE INDEX finished_newest ON {schema}.finished (created_at);

-- What is worth telling beyond the normal course: failed attempts, lost leases,
-- kills with their stack, what operators did. The hot path writes none.
CREATE TABLE {schema}.event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimer bigint,
    claimed_at timestamptz,
    token bigint,
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

-- The ids that callers brought, each once over a command's whole life, written
-- in the statement that writes the row. What is missing from RETURNING is a
-- duplicate: correct at every isolation level, and moves between the tables
-- need nothing. (Tried and broken: looking into all tables first, with or
-- without an advisory lock: two rows under concurrent senders.)
CREATE TABLE {schema}.identity (
    command_id uuid NOT NULL,
    -- The call that brought it: a repetition of the same call is no duplicate.
    call bigint,
    domain {schema}.name NOT NULL,
    PRIMARY KEY (domain, command_id)
);

-- Settings of a domain; a domain without any has no row.
CREATE TABLE {schema}.domain (
    name {schema}.name PRIMARY KEY,
    accepting boolean NOT NULL DEFAULT true,
    paused boolean NOT NULL DEFAULT false,
    max_depth integer CHECK (max_depth > 0),
    warn_depth integer CHECK (warn_depth > 0),
    keep interval NOT NULL DEFAULT '7 days'
        CHECK (keep BETWEEN interval '0' AND interval '36525 days'),
    -- When a steward began to remove what the domain does not keep any longer; NULL is never.
    swept_at timestamptz
);

-- One life of one worker process. The process draws its number at random, because a server
-- that was restored to an earlier point would give a number again.
CREATE TABLE {schema}.incarnation (
    id bigint PRIMARY KEY,
    worker text NOT NULL,
    -- Of its claims: none ends later than this after it was renewed.
    lease interval NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it had a session for the last time, as far as retention has looked.
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The nodes that renew leases, when each did it last, and which types their workers handle, as
-- 'domain type'. A node that holds nothing and whose processes all wait renews nothing.
CREATE TABLE {schema}.node (
    id bigint PRIMARY KEY,
    lease interval NOT NULL,
    renewed_at timestamptz NOT NULL,
    types text[] COLLATE "C" NOT NULL
);

-- In microseconds since 1970: until then the nodes have time to renew, after a time in which
-- none of them could; see waits_for_renewals. A sequence, as it must outlive a rollback.
CREATE SEQUENCE {schema}.patience MINVALUE 0;
SELECT pg_catalog.setval('{schema}.patience', 0::bigint);
