-- How the executions of an incarnation ended, in the order of their claims; NULL where that
-- is not known. Anything but a completion leaves an event of the claim's token; that comes
-- first, as an operator may have completed the command since. By the primary keys of event
-- and finished.
SELECT coalesce(
    (SELECT CASE e.kind
            WHEN 'LOST' THEN 'LOST'
            WHEN 'BUSINESS_RULE_FAILED' THEN 'FAILED'
            WHEN 'MOVED_TO_TROUBLESHOOTING_QUEUE' THEN 'TROUBLE'
            ELSE CASE e.details ->> 'reason'::text WHEN 'INTERRUPTED' THEN 'INTERRUPTED'
                ELSE 'RETRY' END END
        FROM {schema}.event e
        WHERE e.domain = k.domain AND e.command_id = k.command_id AND e.token = k.token
            AND e.claimer = %(claimer)s
            AND e.kind IN ('LOST', 'BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE',
                'FAILED')
        ORDER BY e.id
        LIMIT 1),
    (SELECT f.status FROM {schema}.finished f
        WHERE f.domain = k.domain AND f.command_id = k.command_id AND f.token = k.token
            AND f.claimer = %(claimer)s AND f.status IN ('COMPLETED', 'CANCELED')
        LIMIT 1))
FROM unnest(%(domains)s::text[], %(command_ids)s::uuid[], %(tokens)s::bigint[])
    WITH ORDINALITY k (domain, command_id, token, place)
ORDER BY place;
