-- The history of domains; see 22_history.sql.

-- name: read_history
-- The periods of one resolution that have begun since some time, oldest first, with what ended in a
-- domain, or in all if that is empty, and what waited there. A period in which no node lived has no
-- row. present is the database's time.
SELECT t.at, clock_timestamp() AS present, coalesce(d.figures, '{}'),
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.waiting, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.oldest_age, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.limited, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.later, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.running, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.in_trouble, 0) END,
    CASE WHEN t.waiting IS NOT NULL THEN coalesce(d.unfinished, 0) END
FROM {schema}.rollup t
LEFT JOIN {schema}.rollup d
    ON d.resolution = t.resolution AND d.slot = t.slot AND d.at = t.at AND d.domain = %(domain)s
WHERE t.resolution = %(resolution)s AND t.domain = ''
    AND t.at > clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY t.at;

-- name: read_minutes
-- Of all domains, by minute, oldest first; all together are the domain ''. See read_history.
SELECT r.domain, r.at, r.figures, r.waiting, r.oldest_age, r.limited, r.later, r.running,
    r.in_trouble, r.unfinished
FROM {schema}.rollup r
WHERE r.resolution = 1 AND r.at > clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY r.domain, r.at;
