-- Keys of the rows that a claim would take; see claim in the schema.
SELECT c.domain, c.priority, c.id, c.token, c.command_id, c.claimer
FROM unnest(%(domains)s::text[], %(priorities)s::smallint[]) q (domain, priority),
    LATERAL (
        SELECT r.domain, r.priority, r.id, r.token, r.command_id, r.claimer
        FROM {schema}.ready r
        WHERE r.domain = q.domain AND r.priority = q.priority
            AND (r.lease_until IS NULL OR {schema}.lease_is_over(r.claimer, r.lease_until))
            AND (r.domain || ' ' || r.type) = ANY (%(types)s::text[])
            AND r.losses + (r.claimer IS NOT NULL)::integer
                BETWEEN %(least_losses)s AND %(most_losses)s
            AND r.id <> ALL (%(skipped)s::bigint[])
        ORDER BY r.domain, r.priority, r.id
        LIMIT %(count)s
    ) c
WHERE NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
LIMIT %(count)s;
