-- Names of the sessions of nodes in this database.
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ %(node)s::text;
