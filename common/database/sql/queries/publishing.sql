-- What nodes have published.

-- name: read_fleet
-- All, or these; by name and host, those that are gone last.
SELECT n.node, n.name, n.host, n.published_at, g.gone, n.stopped, n.state
FROM {schema}.published_node n, LATERAL {schema}.is_gone(n.stopped, n.published_at) g (gone)
WHERE %(nodes)s::bigint[] IS NULL OR n.node = ANY (%(nodes)s::bigint[])
ORDER BY g.gone, n.name, n.host, n.node
LIMIT 500;

-- name: read_fleet_counters
SELECT n.node, n.published_at, n.counters
FROM {schema}.published_node n
WHERE NOT {schema}.is_gone(n.stopped, n.published_at)
LIMIT 500;

-- name: read_stacks
SELECT n.stacks FROM {schema}.published_node n WHERE n.node = %(node)s;
