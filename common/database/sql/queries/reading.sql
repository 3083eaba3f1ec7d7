-- Reports on commands and domains.

-- name: read_command
-- One statement, so that no command is missed while it moves between tables. Payloads are text, as
-- this Python may be unable to decode them; times are within Python's range.
SELECT domain, command_id, type, status, priority, attempts, max_attempts,
    data::text, result::text, error_code, error_message, correlation_id, reply_to, batch_id,
    created_at, least(greatest(due_at, '0002-01-01'), '9998-12-31') AS due_at,
    started_at, finished_at, worker, key, unique_key,
    CASE WHEN expires_at IS NOT NULL
        THEN least(greatest(expires_at, '0002-01-01'), '9998-12-31') END AS expires_at,
    checkpoint::text, headers::text
FROM {schema}.command
WHERE domain = %(domain)s AND command_id = %(command_id)s;

-- name: query_commands
-- The newest first. A command that finished before `since` was sent before it: so whole partitions
-- of history go unread.
SELECT domain, command_id, type, status, priority, attempts, max_attempts,
    data::text, result::text, error_code, error_message, correlation_id, reply_to, batch_id,
    created_at, least(greatest(due_at, '0002-01-01'), '9998-12-31') AS due_at,
    started_at, finished_at, worker, key, unique_key,
    CASE WHEN expires_at IS NOT NULL
        THEN least(greatest(expires_at, '0002-01-01'), '9998-12-31') END AS expires_at,
    checkpoint::text, headers::text
FROM {schema}.command
WHERE (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(key)s::text IS NULL OR key = %(key)s)
    AND (%(since)s::timestamptz IS NULL
         OR (created_at >= %(since)s AND (finished_at IS NULL OR finished_at >= %(since)s)))
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
ORDER BY created_at DESC, command_id DESC
LIMIT %(limit)s OFFSET %(offset)s;

-- name: read_task
-- A command of one of these domains, what the result of a task shows of it, and its failures and
-- retries by operators, the oldest first: kind, number of the attempt, worker, code, message,
-- details. first_claimed_at is that of an execution that has failed or was lost.
SELECT c.domain, c.type, c.status, c.attempts, c.data::text, c.result::text, c.error_code,
    c.error_message, c.worker, c.created_at, least(e.first_claimed_at, c.started_at) AS begun_at,
    c.started_at, coalesce(c.finished_at, CASE c.status
        WHEN 'IN_TROUBLESHOOTING_QUEUE' THEN e.failed_at END) AS ended_at, e.events::text
FROM {schema}.command c, LATERAL (
    SELECT min(e.claimed_at) AS first_claimed_at,
        max(e.at) FILTER (WHERE e.kind = 'MOVED_TO_TROUBLESHOOTING_QUEUE') AS failed_at,
        json_agg(json_build_array(e.kind, e.attempt, i.worker, e.code, e.message, e.details)
                 ORDER BY e.id) FILTER (WHERE e.kind = ANY (ARRAY['FAILED', 'OPERATOR_RETRY',
            'BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE'])) AS events
    FROM {schema}.event e LEFT JOIN {schema}.incarnation i ON i.id = e.claimer
    WHERE e.domain = c.domain AND e.command_id = c.command_id
) e
WHERE c.domain = ANY (%(domains)s::text[]) AND c.command_id = %(command_id)s;

-- name: read_audit
-- The normal course is read from the command's own columns, the rest from event; a failed attempt's
-- event also has the time of its claim. An uncharged attempt has the number of the next one.
WITH c AS MATERIALIZED (
    SELECT * FROM {schema}.command
    WHERE domain = %(domain)s AND command_id = %(command_id)s
), e AS MATERIALIZED (
    SELECT e.id, e.at, e.claimed_at, e.kind, e.attempt + u.uncharged::integer AS attempt,
        e.operator, e.code, e.message
            || CASE WHEN u.uncharged THEN ' (does not count as an attempt)' ELSE '' END AS message,
        e.details, i.worker
    FROM {schema}.event e
    LEFT JOIN {schema}.incarnation i ON i.id = e.claimer,
    LATERAL (SELECT e.kind = 'LOST'
        OR coalesce(e.details ->> 'reason'::text = 'INTERRUPTED', false)) u (uncharged)
    WHERE e.domain = %(domain)s AND e.command_id = %(command_id)s
)
SELECT at, kind, attempt, worker, operator, code, message, details::text
FROM (
    SELECT created_at AS at, 0 AS rank, 0::bigint AS id, 'SENT' AS kind, NULL::integer AS attempt,
        NULL AS worker, NULL AS operator, NULL AS code, NULL AS message,
        (SELECT json_object_agg(name, value) FROM (VALUES
            ('type', to_json(type)), ('priority', to_json(priority)),
            ('correlation_id', to_json(correlation_id)),
            ('reply_to', coalesce(to_json(reply_to), 'null')), ('key', to_json(key)),
            ('unique_key', to_json(unique_key)), ('expires_at', to_json(expires_at)))
            given (name, value) WHERE value IS NOT NULL) AS details
    FROM c
    UNION ALL
    SELECT started_at, 1, 0, 'RECEIVED',
        attempts + (status IN ('PENDING', 'CANCELED'))::integer, worker, NULL, NULL, NULL, NULL
    FROM c
    WHERE started_at IS NOT NULL AND NOT EXISTS (SELECT FROM e WHERE e.claimed_at = c.started_at)
    UNION ALL
    SELECT DISTINCT ON (claimed_at)
        claimed_at, 1, id, 'RECEIVED', attempt::integer, worker, NULL, NULL, NULL, NULL
    FROM e WHERE claimed_at IS NOT NULL
    UNION ALL
    SELECT at, 2, id, kind, attempt, worker, operator, code, message, details FROM e
    UNION ALL
    SELECT finished_at, 3, 0, 'COMPLETED', attempts, worker, NULL, NULL, NULL, NULL
    FROM c WHERE status = 'COMPLETED'
        AND NOT EXISTS (SELECT FROM e WHERE kind = 'OPERATOR_COMPLETE')
) audit
ORDER BY at, rank, id;

-- name: read_domain_audit
-- The latest events.
SELECT at, kind, NULL AS attempt, NULL AS worker, operator, NULL AS code, message, details::text
FROM (
    SELECT * FROM {schema}.domain_event
    WHERE domain = %(domain)s
    ORDER BY id DESC
    LIMIT %(latest)s::bigint
) latest
ORDER BY id;

-- name: read_trouble
-- The newest first. The reason is that of the event that recorded the move.
SELECT t.domain, t.command_id, t.type, 'IN_TROUBLESHOOTING_QUEUE', t.priority,
    t.attempts::integer, t.max_attempts::integer, t.data::text, NULL, t.error_code,
    t.error_message, t.correlation_id, t.reply_to, t.batch_id, t.created_at,
    least(greatest(coalesce(t.due_at, t.created_at), '0002-01-01'), '9998-12-31'),
    t.claimed_at, NULL::timestamptz, i.worker, t.key, t.unique_key,
    CASE WHEN t.expires_at IS NOT NULL
        THEN least(greatest(t.expires_at, '0002-01-01'), '9998-12-31') END,
    (SELECT k.data::text FROM {schema}.checkpoint k
     WHERE k.domain = t.domain AND k.command_id = t.command_id AND k.created_at = t.created_at),
    t.headers::text, t.failed_at,
    (SELECT e.details ->> 'reason'::text FROM {schema}.event e
     WHERE e.domain = t.domain AND e.command_id = t.command_id
         AND e.kind = 'MOVED_TO_TROUBLESHOOTING_QUEUE'
     ORDER BY e.id DESC LIMIT 1)
FROM {schema}.troubleshooting t LEFT JOIN {schema}.incarnation i ON i.id = t.claimer
WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
    AND (%(type)s::text IS NULL OR t.type = %(type)s)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
    AND (%(key)s::text IS NULL OR t.key = %(key)s)
    AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
ORDER BY t.failed_at DESC, t.domain DESC, t.command_id DESC
LIMIT %(limit)s OFFSET %(offset)s;

-- name: page_trouble
-- As read_trouble, but those that come after a command in this order. The first condition on it
-- finds the place in the index whatever the plan is; the second leaves out its equals.
SELECT t.domain, t.command_id, t.type, 'IN_TROUBLESHOOTING_QUEUE', t.priority,
    t.attempts::integer, t.max_attempts::integer,
    CASE WHEN %(with_data)s::boolean THEN t.data::text END, NULL, t.error_code, t.error_message,
    t.correlation_id, t.reply_to, t.batch_id, t.created_at,
    least(greatest(coalesce(t.due_at, t.created_at), '0002-01-01'), '9998-12-31'),
    t.claimed_at, NULL::timestamptz, i.worker, t.key, t.unique_key,
    CASE WHEN t.expires_at IS NOT NULL
        THEN least(greatest(t.expires_at, '0002-01-01'), '9998-12-31') END,
    (SELECT k.data::text FROM {schema}.checkpoint k
     WHERE k.domain = t.domain AND k.command_id = t.command_id AND k.created_at = t.created_at
         AND %(with_data)s::boolean),
    CASE WHEN %(with_data)s::boolean THEN t.headers::text END, t.failed_at,
    (SELECT e.details ->> 'reason'::text FROM {schema}.event e
     WHERE e.domain = t.domain AND e.command_id = t.command_id
         AND e.kind = 'MOVED_TO_TROUBLESHOOTING_QUEUE'
     ORDER BY e.id DESC LIMIT 1)
FROM {schema}.troubleshooting t LEFT JOIN {schema}.incarnation i ON i.id = t.claimer
WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
    AND (%(type)s::text IS NULL OR t.type = %(type)s)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
    AND (%(key)s::text IS NULL OR t.key = %(key)s)
    AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
    AND t.failed_at <= coalesce(%(after)s::timestamptz, 'infinity')
    AND (%(after)s::timestamptz IS NULL OR (t.failed_at, t.domain, t.command_id)
         < (%(after)s::timestamptz, %(after_domain)s::text, %(after_id)s::uuid))
ORDER BY t.failed_at DESC, t.domain DESC, t.command_id DESC
LIMIT %(limit)s;

-- name: group_trouble
-- Counts of the latest commands by domain, type and error, with the latest of each; the groups to
-- which a command came last first. The latest is found by its time, and not by its domain, of which
-- there may be many.
SELECT g.domain, g.type, g.error_code, g.count, g.first_failed_at, g.last_failed_at,
    l.command_id, l.error_message
FROM (
    SELECT domain, type, error_code, count(*) AS count, min(failed_at) AS first_failed_at,
        max(failed_at) AS last_failed_at
    FROM (
        SELECT t.domain, t.type, t.error_code, t.failed_at FROM {schema}.troubleshooting t
        WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
            AND (%(type)s::text IS NULL OR t.type = %(type)s)
            AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
        ORDER BY t.failed_at DESC LIMIT %(read)s::bigint
    ) latest
    GROUP BY domain, type, error_code
    ORDER BY max(failed_at) DESC, domain, type, error_code
    LIMIT %(limit)s
) g, LATERAL (
    SELECT t.command_id, t.error_message FROM {schema}.troubleshooting t
    WHERE t.failed_at = g.last_failed_at AND t.domain || '' = g.domain AND t.type = g.type
        AND t.error_code IS NOT DISTINCT FROM g.error_code
    ORDER BY t.command_id LIMIT 1
) l
ORDER BY g.last_failed_at DESC, g.domain, g.type, g.error_code;

-- name: summarize_trouble
-- The most frequent first; all of them without a limit.
SELECT domain, type, error_code, count(*), min(failed_at), max(failed_at)
FROM {schema}.troubleshooting t
WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
    AND (%(type)s::text IS NULL OR t.type = %(type)s)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
    AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
GROUP BY domain, type, error_code
ORDER BY count(*) DESC, domain, type, error_code
LIMIT %(limit)s;

-- name: summarize_trouble_of_key
-- The same for a key.
SELECT domain, type, error_code, count(*), min(failed_at), max(failed_at)
FROM {schema}.troubleshooting t
WHERE t.key = %(key)s::text
    AND (%(domain)s::text IS NULL OR t.domain = %(domain)s)
    AND (%(type)s::text IS NULL OR t.type = %(type)s)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
    AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
GROUP BY domain, type, error_code
ORDER BY count(*) DESC, domain, type, error_code
LIMIT %(limit)s;

-- name: read_domains
-- Every domain that has commands waiting, running or in troubleshooting, or settings; a row for
-- each of its types, and one without a type for the settings. The condition on domains reaches the
-- tables' indexes because all columns are text, and nothing is a CTE.
SELECT c.domain, c.type, c.ready, c.scheduled, c.limited, c.in_progress, c.troubleshooting,
    c.oldest_age, coalesce(d.paused, false), coalesce(d.accepting, true), d.max_depth,
    d.warn_depth, d.max_waiting_per_key, coalesce(d.keep, interval '7 days'),
    c.ready + c.limited > 0 AND c.in_progress = 0 AND c.oldest_age >= %(unhandled_after)s
        AND NOT coalesce(d.paused, false) AND NOT {schema}.is_handled(c.domain, c.type),
    CASE WHEN c.ready + c.limited > 0 AND NOT {schema}.is_handled(c.domain, c.type)
        THEN {schema}.missing_tags(c.domain, c.type) END,
    CASE WHEN NOT coalesce(d.paused, false) THEN u.priorities END
FROM (
    SELECT domain, type, sum(ready)::bigint AS ready, sum(scheduled)::bigint AS scheduled,
        sum(limited)::bigint AS limited,
        sum(in_progress)::bigint AS in_progress, sum(troubleshooting)::bigint AS troubleshooting,
        coalesce(extract(epoch FROM clock_timestamp() - min(oldest)), 0)::double precision
            AS oldest_age
    FROM (
        SELECT domain::text, type::text, count(*) FILTER (WHERE claimable) AS ready,
            0 AS scheduled, 0 AS limited, count(*) FILTER (WHERE NOT claimable) AS in_progress,
            0 AS troubleshooting, min(waits_since) FILTER (WHERE claimable) AS oldest
        FROM (
            SELECT domain, type, coalesce(due_at, created_at) AS waits_since,
                lease_until IS NULL OR lease_until <= clock_timestamp() AS claimable
            FROM {schema}.ready
        ) r
        GROUP BY domain, type
        UNION ALL
        SELECT domain::text, type::text, 0, count(*), 0, 0, 0, NULL FROM {schema}.scheduled
        GROUP BY domain, type
        UNION ALL
        SELECT domain::text, type::text, 0, 0, count(*), 0, 0, min(coalesce(due_at, created_at))
        FROM {schema}.limited
        GROUP BY domain, type
        UNION ALL
        SELECT domain, type, 0, 0, 0, 0, count(*), NULL FROM {schema}.troubleshooting
        GROUP BY domain, type
        UNION ALL
        SELECT name::text, NULL, 0, 0, 0, 0, 0, NULL FROM {schema}.domain
    ) counts
    WHERE %(domains)s::text[] IS NULL OR domain = ANY (%(domains)s)
    GROUP BY domain, type
) c
LEFT JOIN {schema}.domain d ON d.name = c.domain
LEFT JOIN {schema}.unclaimed_priorities(%(domains)s, %(unhandled_after)s) u
    ON u.domain = c.domain AND u.type = c.type
ORDER BY c.domain, c.type;

-- name: read_depths
-- Numbers of commands by domain and state, the largest first, with the seconds for which the oldest
-- has waited of those that are ready or limited: at most 10,000, as a role that may send can name
-- any number of domains. Reads all of ready, scheduled, limited and troubleshooting.
SELECT domain, state, depth, CASE WHEN state IN ('ready', 'limited')
    THEN greatest(0, extract(epoch FROM clock_timestamp() - since))::double precision END
FROM (
    SELECT domain::text, CASE WHEN lease_until > clock_timestamp() THEN 'in_progress'
                              ELSE 'ready' END AS state, count(*) AS depth,
        min(coalesce(due_at, created_at)) AS since
    FROM {schema}.ready GROUP BY 1, 2
    UNION ALL
    SELECT domain::text, 'scheduled', count(*), NULL FROM {schema}.scheduled GROUP BY 1
    UNION ALL
    SELECT domain::text, 'limited', count(*), min(coalesce(due_at, created_at))
    FROM {schema}.limited GROUP BY 1
    UNION ALL
    SELECT domain, 'troubleshooting', count(*), NULL FROM {schema}.troubleshooting GROUP BY 1
) counts
ORDER BY depth DESC LIMIT 10000;

-- name: find_unhandled
-- Types of some domains that no known worker runs, with the number of their commands and the tags
-- that are missing; or, of types that one runs, the priorities that none claims. All of these
-- commands are claimable or wait at a limit, and the oldest has waited for some time. The most
-- frequent first. Reads all of ready and limited.
SELECT q.domain, q.type, sum(q.number)::bigint, {schema}.missing_tags(q.domain, q.type),
    CASE WHEN {schema}.is_handled(q.domain, q.type) OR q.is_own
        THEN array_agg(q.priority ORDER BY q.priority) END
FROM (
    SELECT r.domain, r.type, r.priority, count(*) AS number,
        (r.domain || ' ' || r.type) = ANY (%(types)s::text[]) AS is_own,
        bool_and(r.lease_until IS NULL OR r.lease_until <= clock_timestamp()) AS waits,
        min(r.waits_since) AS waits_since
    FROM (
        SELECT domain::text, type::text, priority::smallint, lease_until,
            coalesce(due_at, created_at) AS waits_since
        FROM {schema}.ready
        UNION ALL
        SELECT domain::text, type::text, priority::smallint, NULL, coalesce(due_at, created_at)
        FROM {schema}.limited
    ) r
    WHERE r.domain = ANY (%(domains)s::text[])
        AND ((r.domain || ' ' || r.type) <> ALL (%(types)s::text[])
             OR r.priority NOT BETWEEN (%(priorities)s::smallint[])[1]
                 AND (%(priorities)s::smallint[])[2])
    GROUP BY r.domain, r.type, r.priority
) q
WHERE NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
    AND NOT {schema}.is_handled(q.domain, q.type, q.priority)
GROUP BY q.domain, q.type, q.is_own
HAVING bool_and(q.waits) AND min(q.waits_since)
    <= clock_timestamp() - make_interval(secs => %(seconds)s::double precision)
ORDER BY 3 DESC, q.domain, q.type
LIMIT %(count)s;
