-- Circuit breakers; see also 18_breakers.sql.

-- name: read_breaker_states
-- Of these breakers, with times in seconds: the cooldown, until probes are let through, since the
-- latest change, and since the first failure on record; and how many more open it.
SELECT name::text, state, cooldown_seconds,
    extract(epoch FROM retry_at - clock_timestamp())::double precision,
    extract(epoch FROM clock_timestamp() - changed_at)::double precision,
    extract(epoch FROM clock_timestamp() - failed_at[1])::double precision,
    failures - cardinality(failed_at)
FROM {schema}.breaker
WHERE name = ANY (%(names)s::text[]);

-- name: read_breakers
-- For each breaker: its state and what is in force, each declaration, the latest first, and what is
-- set.
SELECT name::text, 'in_force' AS kind, NULL AS app, changed_at AS at, NULL AS operator,
    NULL AS reason, NULL::text[] AS counts, covers, failures, window_seconds, cooldown_seconds,
    probes, state, cardinality(failed_at) AS on_record, retry_at,
    (SELECT count(*) FROM {schema}.breaker_probe p WHERE p.breaker = b.name) AS probing, opened_at
FROM {schema}.breaker b
UNION ALL
SELECT name, 'declared', app, declared_at, NULL, NULL, counts, covers, failures, window_seconds,
    cooldown_seconds, probes, NULL, NULL, NULL, NULL, NULL
FROM {schema}.breaker_declared
UNION ALL
SELECT name, 'set', NULL, set_at, operator, reason, NULL, NULL, failures, window_seconds,
    cooldown_seconds, probes, NULL, NULL, NULL, NULL, NULL
FROM {schema}.breaker_set
ORDER BY name, at DESC;

-- name: read_breaker_audit
SELECT at, kind, NULL AS attempt, NULL AS worker, operator, NULL AS code, message, details::text
FROM {schema}.breaker_event WHERE breaker = %(name)s ORDER BY id;

-- name: read_latest_of_breakers
-- The latest events of each breaker.
SELECT b.name::text, e.at, e.kind, NULL AS attempt, NULL AS worker, e.operator, NULL AS code,
    e.message, e.details::text
FROM {schema}.breaker b, LATERAL (
    SELECT * FROM {schema}.breaker_event v
    WHERE v.breaker = b.name::text
    ORDER BY v.id DESC
    LIMIT %(latest)s
) e
ORDER BY b.name, e.id;

-- name: count_breakers
-- The state of each: 0 is CLOSED, 1 HALF_OPEN, 2 OPEN.
SELECT name::text, CASE state WHEN 'CLOSED' THEN 0 WHEN 'HALF_OPEN' THEN 1 ELSE 2 END
FROM {schema}.breaker;

-- name: find_breaker_of
-- The breaker that keeps commands of this type from being claimed.
SELECT name::text, state, retry_at FROM {schema}.breaker
WHERE state <> 'CLOSED' AND %(type)s::text = ANY (covers);

-- name: read_openings
-- Those of these breakers that are not CLOSED, for how many seconds, and what has opened them.
SELECT b.name::text, extract(epoch FROM clock_timestamp() - b.opened_at)::double precision,
    CASE WHEN e.details ? 'failures'::text THEN format(
            '%%s failures since %%s, no calls for %%s s', e.details ->> 'failures'::text,
            to_char((e.details ->> 'first_at'::text)::timestamptz, 'HH24:MI:SS'),
            e.details ->> 'for_seconds'::text)
        ELSE concat_ws(': ', concat_ws(' ', 'opened by', coalesce(e.operator, 'an operator')),
            e.message) END
FROM {schema}.breaker b
LEFT JOIN LATERAL (
    SELECT v.operator, v.message, v.details::jsonb FROM {schema}.breaker_event v
    WHERE v.breaker = b.name AND v.kind = 'OPENED' AND NOT v.details::jsonb ? 'probe'::text
    ORDER BY v.id DESC LIMIT 1) e ON true
WHERE b.name = ANY (%(names)s::text[]) AND b.opened_at IS NOT NULL
ORDER BY b.name;

-- name: end_deferrals
-- How many commands it has made due that these breakers have kept from a call: those of them that
-- are CLOSED, as one may have opened since its state was read.
SELECT sum({schema}.end_deferrals(n.name)) FROM unnest(%(names)s::text[]) n (name)
LEFT JOIN {schema}.breaker b ON b.name = n.name WHERE b.opened_at IS NULL;
