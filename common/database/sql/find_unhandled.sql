-- Types of some domains that no known worker handles, with the number of their commands: all of
-- these are claimable, and the oldest has been for some time. The most frequent first. Reads all
-- of ready.
SELECT r.domain::text, r.type::text, count(*)
FROM {schema}.ready r
WHERE r.domain = ANY (%(domains)s::text[])
    AND (r.domain || ' ' || r.type) <> ALL (%(types)s::text[])
GROUP BY r.domain, r.type
HAVING bool_and(r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
    AND min(coalesce(r.due_at, r.created_at))
        <= clock_timestamp() - make_interval(secs => %(seconds)s::double precision)
    AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused)
    AND NOT {schema}.is_handled(r.domain, r.type)
ORDER BY count(*) DESC, r.domain, r.type
LIMIT %(count)s;
