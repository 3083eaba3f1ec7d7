-- Counts of one domain, of one moment. oldest_age: seconds that the oldest command
-- that could be claimed has waited since it was due.
SELECT r.ready + s.scheduled AS depth, r.ready, s.scheduled, r.in_progress, t.troubleshooting,
    coalesce(r.oldest_age, 0)::double precision AS oldest_age,
    coalesce((SELECT NOT accepting FROM {schema}.domain WHERE name = %(domain)s), false)
FROM (
    SELECT count(*) FILTER (WHERE claimable) AS ready,
        count(*) FILTER (WHERE NOT claimable) AS in_progress,
        extract(epoch FROM clock_timestamp() - min(waits_since) FILTER (WHERE claimable))
            AS oldest_age
    FROM (
        SELECT lease_until IS NULL OR lease_until <= clock_timestamp() AS claimable,
            coalesce(due_at, created_at) AS waits_since
        FROM {schema}.ready WHERE domain = %(domain)s
    ) claims
) r, (
    SELECT count(*) AS scheduled FROM {schema}.scheduled WHERE domain = %(domain)s
) s, (
    SELECT count(*) AS troubleshooting FROM {schema}.troubleshooting WHERE domain = %(domain)s
) t;
