-- What a producer executes.

-- name: enqueue
SELECT refusal, depth, max_depth, warn_depth, oldest_age
FROM {schema}.enqueue(
    %(domain)s, %(type)s, %(data)s::json, %(command_id)s, %(own)s, %(priority)s, %(delay)s::double precision,
    %(run_at)s, %(correlation_id)s, %(reply_to)s, %(max_attempts)s, %(call)s, %(again)s);

-- name: admit
-- Whether each domain takes this number of further commands; and the server's time, for delays.
SELECT d.name, a.refusal, a.depth, a.max_depth, a.warn_depth, a.oldest_age,
    clock_timestamp()
FROM unnest(%(domains)s::text[], %(counts)s::bigint[]) d (name, count),
    {schema}.admit(d.name, d.count) a;

-- name: identify
SELECT domain, command_id, refusal
FROM {schema}.identify(%(domains)s::text[], %(command_ids)s::uuid[], %(call)s, %(brought)s);

-- name: landed
SELECT {schema}.landed(%(domain)s, %(command_id)s, %(brought)s, %(call)s, %(again)s);

-- name: wait_for_call
-- Waits until a call's first try has ended. A statement of its own: at REPEATABLE READ the next
-- one would otherwise have a snapshot as old as the wait.
SELECT pg_advisory_lock(%(call)s::bigint), pg_advisory_unlock(%(call)s::bigint);

-- name: copy_ready
-- The columns that a sender may fill; those of claims and attempts keep their defaults.
COPY {schema}.ready (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts
) FROM STDIN;

-- name: copy_scheduled
COPY {schema}.scheduled (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts, due_at
) FROM STDIN;
