-- The normal course is read from the command's own columns, the rest from event:
-- a failed attempt's event also says when that attempt was received. Rows count the attempts
-- that are charged; an uncharged one has the number of the next.
WITH c AS MATERIALIZED (
    SELECT * FROM {schema}.command
    WHERE domain = %(domain)s AND command_id = %(command_id)s
), e AS MATERIALIZED (
    SELECT e.id, e.at, e.claimed_at, e.kind, e.attempt + u.uncharged::integer AS attempt, e.operator,
        e.code, e.message || CASE WHEN u.uncharged THEN ' (does not count as an attempt)' ELSE '' END
            AS message,
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
        json_build_object('type', type, 'priority', priority, 'correlation_id', correlation_id,
                          'reply_to', reply_to) AS details
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
    FROM c WHERE status = 'COMPLETED' AND NOT EXISTS (SELECT FROM e WHERE kind = 'OPERATOR_COMPLETE')
) audit
ORDER BY at, rank, id;
