-- The tables of history, also those that are not partitions any more, and the time.
SELECT c.relname, extract(epoch FROM clock_timestamp())::double precision
FROM pg_class c
WHERE c.relnamespace = '{schema}'::regnamespace::oid AND c.relkind = 'r'
    AND c.relname::text ~ '^finished_[0-9]{8}$'
ORDER BY c.relname;
