-- Every domain that has commands waiting, running or in troubleshooting, or settings; a
-- row for each of its types, and one whose type is NULL for the settings.
WITH counts AS (
    SELECT domain, type,
        count(*) FILTER (WHERE claimable) AS ready,
        0::bigint AS scheduled,
        count(*) FILTER (WHERE NOT claimable) AS in_progress,
        0::bigint AS troubleshooting,
        extract(epoch FROM clock_timestamp() - min(waits_since) FILTER (WHERE claimable))
            ::double precision AS oldest_age
    FROM (
        SELECT domain, type, lease_until IS NULL OR lease_until <= clock_timestamp() AS claimable,
            coalesce(due_at, created_at) AS waits_since
        FROM {schema}.ready
    ) r
    GROUP BY domain, type
    UNION ALL
    SELECT domain, type, 0, count(*), 0, 0, NULL FROM {schema}.scheduled GROUP BY domain, type
    UNION ALL
    SELECT domain, type, 0, 0, 0, count(*), NULL FROM {schema}.troubleshooting
    GROUP BY domain, type
    UNION ALL
    SELECT name, NULL, 0, 0, 0, 0, NULL FROM {schema}.domain
)
SELECT c.domain, c.type, c.ready, c.scheduled, c.in_progress, c.troubleshooting, c.oldest_age,
    coalesce(d.paused, false), coalesce(d.accepting, true), d.max_depth, d.warn_depth,
    coalesce(d.keep, interval '7 days'),
    c.ready > 0 AND c.in_progress = 0 AND c.oldest_age >= %(unhandled_after)s
        AND NOT coalesce(d.paused, false) AND NOT {schema}.is_handled(c.domain, c.type)
FROM (
    SELECT domain, type, sum(ready)::bigint AS ready, sum(scheduled)::bigint AS scheduled,
        sum(in_progress)::bigint AS in_progress, sum(troubleshooting)::bigint AS troubleshooting,
        coalesce(max(oldest_age), 0) AS oldest_age
    FROM counts
    WHERE %(domains)s::text[] IS NULL OR domain = ANY (%(domains)s)
    GROUP BY domain, type
) c
LEFT JOIN {schema}.domain d ON d.name = c.domain
ORDER BY c.domain, c.type;
