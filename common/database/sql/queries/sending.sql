-- Statements of producers.

-- name: admit
-- Whether each domain takes this number of further commands; and the server's time, for delays.
SELECT d.name, a.refusal, a.depth, a.max_depth, a.warn_depth, a.oldest_age,
    clock_timestamp()
FROM unnest(%(domains)s::text[], %(counts)s::bigint[]) d (name, count),
    {schema}.admit(d.name, d.count) a;

-- name: wait_for_call
-- Waits until a call's first try has ended, not for long. A transaction of its own, so that at
-- REPEATABLE READ the next one has a later snapshot.
SELECT set_config('lock_timeout', '5s', true), pg_advisory_xact_lock(%(call)s::bigint);

-- name: end_call
-- Ends the session of a call's first try, which has the call's lock.
SELECT pg_terminate_backend(l.pid)
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid AND a.datid = l.database
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1::smallint
    AND a.datname = current_database() AND pg_has_role(a.usesysid, 'USAGE'::text)
    AND l.classid = (%(call)s::bigint >> 32)::oid
    AND l.objid = (%(call)s::bigint & 4294967295)::oid;

-- name: copy
-- The columns that a sender may fill; those of claims and attempts keep their defaults.
COPY {schema}.{table} (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts{more}
) FROM STDIN;

-- name: insert
-- The same, without COPY.
INSERT INTO {schema}.{table} (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts{more}
)
SELECT * FROM unnest(
    %(domain)s::text[], %(priority)s::smallint[], %(command_id)s::uuid[], %(type)s::text[],
    %(data)s::json[], %(correlation_id)s::uuid[], %(reply_to)s::text[],
    %(max_attempts)s::smallint[]{arrays});
