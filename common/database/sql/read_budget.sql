-- The limits on connections that hold for this role here, -1 for none, and how many there
-- are beside this one. Whose sessions they are is visible to every role.
WITH role AS (SELECT oid, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = session_user),
    others AS (
        SELECT usesysid, datname, application_name ~ %(node)s::text AS node
        FROM pg_stat_activity
        WHERE usesysid IS NOT NULL AND pid <> pg_backend_pid()
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
