-- What a worker must be allowed to do and this role is not; see grant_worker.sql. Names
-- the schema only as a value: to look into one without USAGE would be an error.
WITH home AS (SELECT oid FROM pg_namespace WHERE nspname = '{channel}')
SELECT 'USAGE on the schema' FROM home WHERE NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT privilege || ' on ' || relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) p (privilege)
WHERE relname = ANY ('{ready,scheduled,troubleshooting,finished,event,identity,domain,incarnation,waiter}')
    AND NOT has_table_privilege(c.oid, privilege)
UNION ALL
SELECT 'SELECT on ' || relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
WHERE relname = ANY ('{command,migration}') AND NOT has_table_privilege(c.oid, 'SELECT')
UNION ALL
SELECT privilege || ' on ' || relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
CROSS JOIN (VALUES ('SELECT'), ('UPDATE')) p (privilege)
WHERE relname = ANY ('{armed,alarm}') AND NOT has_sequence_privilege(c.oid, privilege)
UNION ALL
SELECT 'EXECUTE on ' || proname::text
FROM home JOIN pg_proc f ON f.pronamespace = home.oid
WHERE NOT has_function_privilege(f.oid, 'EXECUTE');
