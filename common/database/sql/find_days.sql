-- The tables of history, detached ones included, and the time.
SELECT c.relname, extract(epoch FROM clock_timestamp())::double precision
FROM pg_class c
WHERE c.relnamespace = '{schema}'::regnamespace::oid AND c.relkind = 'r'
    AND c.relname::text ~ '^finished_[0-9]{8}$'
ORDER BY c.relname;
