-- One starter at a time migrates one schema; released when its transaction ends.
SELECT pg_advisory_xact_lock('pg_catalog.pg_namespace'::regclass::oid::integer, hashtext(%(schema)s));
