-- Whether a command waits that may only run alone; by the small index of what was lost before.
SELECT EXISTS (
    SELECT FROM {schema}.ready r
    WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= %(losses)s
        AND (r.domain || ' ' || r.type) = ANY (%(types)s::text[])
        AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
        AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused));
