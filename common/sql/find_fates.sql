-- How claims were settled, in their order; NULL where they were not. Anything but COMPLETED
-- leaves an event; that comes first, as an operator may have completed it since. By the
-- primary keys of event and finished.
SELECT coalesce(
    (SELECT CASE e.kind WHEN 'FAILED' THEN 'RETRY' WHEN 'BUSINESS_RULE_FAILED' THEN 'FAILED'
            ELSE 'TROUBLE' END
     FROM {schema}.event e
     WHERE e.domain = k.domain AND e.command_id = k.command_id AND e.token = k.token
         AND e.kind IN ('FAILED', 'BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE')
     LIMIT 1),
    (SELECT 'COMPLETED' FROM {schema}.finished f
     WHERE f.domain = k.domain AND f.command_id = k.command_id AND f.token = k.token
         AND f.status = 'COMPLETED'
     LIMIT 1))
FROM unnest(%(domains)s::text[], %(command_ids)s::uuid[], %(tokens)s::bigint[])
    WITH ORDINALITY k (domain, command_id, token, place)
ORDER BY place;
