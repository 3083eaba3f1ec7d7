-- The checks before a fleet starts.

-- name: read_server
-- The server, and the roles of this session; whether the current role may see and end the sessions
-- of the one that has logged in.
SELECT current_setting('server_encoding'), current_setting('client_encoding'),
    pg_is_in_recovery(), session_user::text, current_database()::text,
    current_user::text,
    pg_has_role(session_user, 'USAGE')
    OR pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE');

-- name: read_effective
-- Settings of this session, timeouts in milliseconds, and their sources.
SELECT name, setting, source FROM pg_settings WHERE name = ANY (%(names)s);

-- name: read_missing_rights
-- Rights of a worker that this role lacks; see grant_worker. Names the schema only as a value:
-- reading one without USAGE would be an error.
WITH home AS (SELECT oid FROM pg_namespace WHERE nspname = '{channel}'),
    wanted AS (
        SELECT unnest(tables) AS relname, privileges
        FROM (VALUES
            ('{ready,scheduled,limited,lane,shared_state,turn,lease,waiter,node}'::text[],
             '{SELECT,INSERT,UPDATE,DELETE}'::text[]),
            ('{troubleshooting,finished,event,incarnation,tally}', '{SELECT,INSERT}'),
            ('{checkpoint}', '{SELECT,INSERT,UPDATE}'),
            ('{bridge}', '{SELECT,UPDATE}'),
            ('{command,batch,batch_state,domain,domain_event,migration,rollup}', '{SELECT}'),
            ('{process,managed_process,process_step,process_event}', '{SELECT}'),
            ('{limit_in_force,limited_type,limit_declared,limit_set,limits}', '{SELECT}'),
            ('{schedule,schedule_declared,schedule_added}', '{SELECT}'),
            ('{breaker,breaker_declared,breaker_event,breaker_probe,breaker_set}', '{SELECT}'),
            ('{ready_id_seq,scheduled_id_seq,event_id_seq,domain_event_id_seq,tally_id_seq}',
             '{SELECT}'),
            ('{armed,alarm,patience,longer_patience,turn_id_seq}', '{SELECT,UPDATE}')
        ) v (tables, privileges)
    )
SELECT 'USAGE on the schema' FROM home WHERE NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT privilege || ' on ' || c.relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid
JOIN wanted w ON w.relname = c.relname::text, unnest(w.privileges) privilege
WHERE NOT has_table_privilege(c.oid, privilege)
UNION ALL
SELECT 'EXECUTE on ' || proname::text
FROM home JOIN pg_proc f ON f.pronamespace = home.oid
WHERE NOT has_function_privilege(f.oid, 'EXECUTE')
UNION ALL
SELECT 'BYPASSRLS for the row security of ' || c.relname::text
FROM home JOIN pg_class c ON c.relnamespace = home.oid JOIN wanted w ON w.relname = c.relname::text
WHERE row_security_active(c.oid);

-- name: read_locks
-- Days of history, and the number of locks that the server has for all sessions together.
SELECT count(*), current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint
        + current_setting('max_prepared_transactions')::bigint)
FROM pg_inherits WHERE inhparent = '{schema}.finished'::regclass::oid;

-- name: read_missing_objects
-- Those of these relations and functions that the schema does not have.
(SELECT unnest(%(relations)s::text[])
 EXCEPT SELECT relname::text FROM pg_class WHERE relnamespace = '{schema}'::regnamespace::oid)
UNION ALL
(SELECT unnest(%(functions)s::text[])
 EXCEPT SELECT proname::text FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace::oid);

-- name: read_triggers
-- Tables and triggers that are not in the mode that the schema gives them, and their mode; NULL if
-- there is none.
SELECT w.name, w.trigger, t.tgenabled::text
FROM (VALUES ('ready', 'wake'), ('scheduled', 'wake'), ('limited', 'leave_turns'),
             ('turn', 'wake')) w (name, trigger)
LEFT JOIN pg_trigger t
    ON t.tgrelid = ('{schema}.' || w.name)::regclass::oid AND t.tgname::text = w.trigger
WHERE t.tgenabled IS DISTINCT FROM 'A'
ORDER BY 1;

-- name: read_sequences
-- Tables with a row whose id their sequence has not reached, the id's column, and the sequence. In
-- ready, where it would be a duplicate, the highest id of each domain and priority is read;
-- elsewhere the ids of some rows.
WITH RECURSIVE queue AS (
    (SELECT domain, priority FROM {schema}.ready ORDER BY domain, priority LIMIT 1)
    UNION ALL
    SELECT r.domain, r.priority FROM queue q, LATERAL (
        SELECT domain, priority FROM {schema}.ready
        WHERE (domain, priority) > (q.domain, q.priority)
        ORDER BY domain, priority LIMIT 1) r
), found (name, id_column, id) AS (
    SELECT 'ready', 'id', max(r.id) FROM queue q, LATERAL (
        SELECT id FROM {schema}.ready WHERE domain = q.domain AND priority = q.priority
        ORDER BY id DESC LIMIT 1) r
    UNION ALL
    SELECT 'scheduled', 'id', max(id) FROM (SELECT id FROM {schema}.scheduled LIMIT 1000) s
    UNION ALL
    SELECT 'limited', 'lane_position', max(lane_position)
    FROM (SELECT lane_position FROM {schema}.limited LIMIT 1000) l
    UNION ALL
    SELECT 'event', 'id', max(id) FROM (SELECT id FROM {schema}.event LIMIT 1000) e
    UNION ALL
    SELECT 'domain_event', 'id', max(id) FROM (SELECT id FROM {schema}.domain_event LIMIT 1000) d
    UNION ALL
    SELECT 'tally', 'id', max(id) FROM (SELECT id FROM {schema}.tally LIMIT 1000) t
)
SELECT f.name, f.id_column, s.name FROM found f, LATERAL (
    SELECT CASE f.name WHEN 'limited' THEN 'ready' ELSE f.name END || '_id_seq') s (name)
WHERE f.id > coalesce(pg_sequence_last_value(('{schema}.' || s.name)::regclass), 0);

-- name: read_budget
-- The limits on connections for this role, -1 for none, and the number of other connections,
-- without those of checks: one of this check may not have ended yet.
WITH role AS (SELECT oid, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = session_user),
    others AS (
        SELECT usesysid, datname, application_name ~ %(node)s::text AS node
        FROM pg_stat_activity
        WHERE usesysid IS NOT NULL AND application_name IS DISTINCT FROM %(check)s
            AND pid <> pg_backend_pid()
            AND coalesce(backend_type, 'client backend') = 'client backend'
    )
SELECT current_setting('max_connections')::integer,
    CASE WHEN rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::integer
        + CASE WHEN EXISTS (
            SELECT FROM pg_roles
            WHERE rolname = 'pg_use_reserved_connections' AND pg_has_role(oid, 'USAGE'))
        THEN 0 ELSE coalesce(current_setting('reserved_connections', true)::integer, 0) END
    END,
    CASE WHEN rolsuper THEN -1 ELSE datconnlimit END,
    CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END,
    (SELECT count(*) FROM others),
    (SELECT count(*) FROM others o WHERE o.datname = current_database()),
    (SELECT count(*) FROM others o WHERE o.usesysid = role.oid),
    (SELECT count(*) FROM others WHERE node)
FROM role, pg_database WHERE pg_database.datname = current_database();

-- name: listen_check
LISTEN {channel}_check;

-- name: notify_check
-- Sent by another session than the one that listens, as in service.
SELECT pg_notify('{channel}_check', %(token)s);

-- name: find_missing_tags
-- Those of these types, an object with an array of tags for each, whose tags no living node has.
SELECT t.key FROM json_each(%(tags)s) t
WHERE NOT EXISTS (
    SELECT FROM {schema}.living_nodes() n
    WHERE ARRAY(SELECT json_array_elements_text(t.value)) <@ n.tags)
ORDER BY t.key;

-- name: find_unclaimed
-- The priorities of types that neither a node with these priorities nor a living one claims.
SELECT t.name, array_agg(p.priority ORDER BY p.priority)
FROM unnest(%(types)s::text[]) t (name),
    (SELECT n::smallint FROM generate_series(0, 10) n) p (priority)
WHERE p.priority NOT BETWEEN (%(priorities)s::smallint[])[1] AND (%(priorities)s::smallint[])[2]
    AND NOT {schema}.is_handled(
        split_part(t.name, ' ', 1), split_part(t.name, ' ', 2), p.priority)
GROUP BY t.name
ORDER BY t.name;
