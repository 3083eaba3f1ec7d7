-- Sessions and transactions.

-- name: open_transaction
-- In one round trip. READ COMMITTED whatever the role's default is: at any other level a renewal of
-- the lease would fail the settlement, which knows the transaction again by the marker.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = {statement_ms};
SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
SET LOCAL cmdbus.transaction = '{marker}';

-- name: limit_transaction
-- New limits of a handler's transaction, the one that cmdbus.transaction marks.
SELECT pg_catalog.set_config('statement_timeout', '{statement_ms}', true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_ms}', true);

-- name: limit_session
-- Those of what a handler does outside of its transaction, until the session is reset.
SELECT pg_catalog.set_config('statement_timeout', '{statement_ms}', false),
    pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_ms}', false),
    pg_catalog.set_config('lock_timeout', '0', false);

-- name: set_time_zone
-- Until the end of the transaction.
SELECT set_config('TimeZone', %(zone)s, true);

-- name: set_role
-- Until the end of the transaction.
SET LOCAL ROLE {identifier};

-- name: reset_role
RESET ROLE;

-- name: limit_statements
-- Until the end of the transaction.
SELECT set_config('statement_timeout', %(limit)s, true);

-- name: commit_transaction
-- And leaves nothing of the session to the next command. Not DISCARD ALL: it drops the statements
-- that the driver has prepared.
COMMIT;
CLOSE ALL;
RESET SESSION AUTHORIZATION;
RESET ROLE;
RESET ALL;
UNLISTEN *;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES;

-- name: rollback_transaction
-- The same.
ROLLBACK;
CLOSE ALL;
RESET SESSION AUTHORIZATION;
RESET ROLE;
RESET ALL;
UNLISTEN *;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES;
SELECT array_agg(quote_ident(name)) FROM pg_prepared_statements WHERE from_sql;

-- name: deallocate
DEALLOCATE {identifier};

-- name: ping
-- Finds a session that has ended, or a server that no longer replies.
SELECT 1;

-- name: read_pid
SELECT pg_backend_pid();

-- name: read_backend
-- The server process of this session, and its start in microseconds since 1970, NULL where the role
-- may not see the sessions of the one that has logged in. Behind a pooler the driver has the
-- pooler's pid. The function, as its view costs each new session a millisecond of joins.
SELECT pg_backend_pid(), (extract(epoch FROM backend_start) * 1000000::numeric)::bigint,
    session_user::text, current_user::text
FROM pg_stat_get_activity(pg_backend_pid());

-- name: read_role
SELECT current_user::text;

-- name: read_rights
-- Of the role, as installing.sql grants them: the columns and functions stand for what roles of the
-- same kind have besides.
SELECT current_user::text, current_database()::text,
    has_column_privilege('{schema}.command'::regclass, 'data', 'SELECT'),
    has_function_privilege('{schema}.resolve'::regproc, 'EXECUTE')
        AND has_function_privilege('{schema}.configure_domain'::regproc, 'EXECUTE');

-- name: read_setting
-- Whether a session's setting is the wanted one, in whatever unit, or a stricter timeout.
SELECT CASE WHEN name LIKE '%%timeout'
        THEN setting::bigint BETWEEN 1
            AND (extract(epoch FROM %(wanted)s::text::interval) * 1000::numeric)::bigint
        ELSE setting = %(wanted)s END,
    current_setting(name)
FROM pg_settings WHERE name = %(name)s;

-- name: read_session
-- The handler's statement in a session, and the sessions that it waits for. A prepared transaction
-- that blocks has no process: its number is 0.
SELECT
    CASE
        WHEN s.state <> 'idle' AND s.query NOT LIKE '%%cmdbus.transaction%%'
        THEN s.state || ': ' || s.query
    END,
    ARRAY(
        SELECT CASE
            WHEN b.pid IS NULL THEN 'a prepared transaction'
            WHEN b.query = '<insufficient privilege>' THEN format(
                'pid %%s (%%s, role %%s): only roles in pg_monitor see what it runs',
                b.pid, coalesce(nullif(b.application_name, ''), b.backend_type), b.usename)
            ELSE format(
                'pid %%s (%%s, role %%s, %%s, transaction of %%s s): %%s',
                b.pid, coalesce(nullif(b.application_name, ''), b.backend_type), b.usename,
                b.state, extract(epoch FROM clock_timestamp() - b.xact_start)::int,
                left(b.query, 300))
        END
        FROM (
            SELECT DISTINCT pid FROM unnest(pg_blocking_pids(s.pid)) AS blocking (pid)
        ) AS blocking
        LEFT JOIN pg_stat_activity b ON b.pid = blocking.pid
        ORDER BY b.xact_start
        LIMIT 10)
FROM pg_stat_activity s
WHERE s.pid = %(pid)s;

-- name: end_sessions
-- Ends sessions, by pid and start or by the name of their worker, and returns the number of those
-- that still exist. Until it is 0, they may commit what is in their socket. Any role can read a
-- worker's name and take it: by name, only sessions of this role are ended.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (application_name = %(name)s AND usename = session_user
        OR (pid, (extract(epoch FROM backend_start) * 1000000::numeric)::bigint) IN (
            SELECT * FROM unnest(%(pids)s::integer[], %(starts)s::bigint[])));

-- name: read_oldest_snapshot
-- Age in seconds of the oldest transaction that keeps this database from removing dead rows; of
-- other roles' only for pg_monitor.
SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - began)), 0)::float8
FROM (
    SELECT xact_start AS began FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
        AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
) open;

-- name: begin
-- This and the next ones are for connections whose drivers do not do it.
BEGIN;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: savepoint
SAVEPOINT cmdbus;

-- name: release_savepoint
RELEASE SAVEPOINT cmdbus;

-- name: undo_savepoint
ROLLBACK TO SAVEPOINT cmdbus;
