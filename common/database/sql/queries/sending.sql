-- Statements of producers.

-- name: admit
-- Whether each domain takes this number of further commands; and the server's time, for delays.
SELECT d.name, a.refusal, a.depth, a.max_depth, a.warn_depth, a.oldest_age,
    clock_timestamp()
FROM unnest(%(domains)s::text[], %(counts)s::bigint[]) d (name, count),
    {schema}.admit(d.name, d.count) a;

-- name: wait_for_call
-- Waits until a call's first try has ended. A statement of its own, so that at REPEATABLE READ the
-- next one has a later snapshot.
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
