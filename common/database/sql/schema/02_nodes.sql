-- The tables of nodes and of their workers, and how senders learn that these wait.

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

-- Nodes that renew leases, and the types that their workers run, as 'domain type'. An idle node
-- renews nothing.
CREATE TABLE {schema}.node (
    id bigint PRIMARY KEY,
    lease interval NOT NULL,
    renewed_at timestamptz NOT NULL,
    types text[] COLLATE "C" NOT NULL,
    -- NULL without any.
    tags text[] COLLATE "C",
    -- The first and the last priority that they claim; NULL: all.
    priorities smallint[]
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
