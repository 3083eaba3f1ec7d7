-- Limits; see also 12_limits.sql.

-- name: read_limits
-- For each limit: what is in force, then each declaration, the latest first, then what is set.
SELECT name, 'in_force' AS kind, NULL AS app, NULL::timestamptz AS at, NULL AS operator,
    NULL AS reason, NULL::text[] AS names, concurrency, starts_per_second, burst, ordered,
    on_trouble, fair, per_node
FROM {schema}.limit_in_force
UNION ALL
SELECT name, 'declared', app, declared_at, NULL, NULL, covers, concurrency, starts_per_second,
    burst, ordered, on_trouble, fair, per_node
FROM {schema}.limit_declared
UNION ALL
SELECT name, 'set', NULL, set_at, operator, reason, given, concurrency, starts_per_second, burst,
    ordered, on_trouble, fair, per_node
FROM {schema}.limit_set
ORDER BY name, at DESC;
