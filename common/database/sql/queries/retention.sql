-- Old history.

-- name: find_days
-- The tables of history, detached ones included, and the time.
SELECT c.relname, extract(epoch FROM clock_timestamp())::double precision
FROM pg_class c
WHERE c.relnamespace = '{schema}'::regnamespace::oid AND c.relkind = 'r'
    AND c.relname::text ~ '^finished_[0-9]{8}$'
ORDER BY c.relname;

-- name: find_keeps
-- Seconds for which domains keep their history, and seconds since the latest sweep of each, NULL
-- if unknown. Python's intervals are too short for them.
SELECT name, extract(epoch FROM keep)::double precision,
    CASE WHEN swept_at <= clock_timestamp()
        THEN extract(epoch FROM clock_timestamp() - swept_at)::double precision END
FROM {schema}.domain;

-- name: find_living
-- Names of the sessions of nodes in this database.
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ %(node)s::text;
