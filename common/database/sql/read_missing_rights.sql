-- What a worker must be allowed to do and this role is not; see grant_worker.sql. Names
-- the schema only as a value: to look into one without USAGE would be an error.
WITH home AS (SELECT oid FROM pg_namespace WHERE nspname = '{channel}'),
    wanted AS (
        SELECT unnest(tables) AS relname, privileges
        FROM (VALUES
            ('{ready,scheduled,waiter,node}'::text[], '{SELECT,INSERT,UPDATE,DELETE}'::text[]),
            ('{troubleshooting,finished,event,incarnation}', '{SELECT,INSERT}'),
            ('{command,domain,domain_event,migration}', '{SELECT}')) v (tables, privileges)
    )
SELECT 'USAGE on the schema' FROM home WHERE NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT privilege || ' on ' || c.relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
JOIN wanted w ON w.relname = c.relname::text, unnest(w.privileges) privilege
WHERE NOT has_table_privilege(c.oid, privilege)
UNION ALL
SELECT privilege || ' on ' || relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
JOIN (VALUES ('armed', 'SELECT'), ('armed', 'UPDATE'), ('alarm', 'SELECT'), ('alarm', 'UPDATE'),
             ('patience', 'SELECT'), ('patience', 'UPDATE'), ('ready_id_seq', 'SELECT')) p (sequence, privilege) ON p.sequence = relname::text
WHERE NOT has_sequence_privilege(c.oid, privilege)
UNION ALL
SELECT 'EXECUTE on ' || proname::text
FROM home JOIN pg_proc f ON f.pronamespace = home.oid
WHERE NOT has_function_privilege(f.oid, 'EXECUTE');
