-- Bridges; see also 23_bridges.sql.

-- name: read_bridges
SELECT b.name, b.queue, b.direction, b.domain, b.type, b.reply_to, b.batch_size, b.moved,
    b.refused, b.moved_at, b.error, b.failed_at, b.operator, b.reason, b.added_at
FROM {schema}.bridge b
ORDER BY b.name;

-- name: count_bridges
-- What each has moved and refused, and 1 if something keeps it from moving, else 0.
SELECT b.name, b.direction, c.what, c.number
FROM {schema}.bridge b, LATERAL (VALUES
    ('moved', b.moved), ('refused', b.refused), ('failing', (b.error IS NOT NULL)::integer::bigint)
) c (what, number);

-- name: find_bridge_of
-- The bridges that take commands of this type out of their domain.
SELECT b.name, b.queue, b.error FROM {schema}.bridge b
WHERE b.direction = 'out' AND b.domain = %(domain)s
    AND coalesce(b.type::text = %(type)s, true)
ORDER BY b.name;

-- name: list_bridges
-- What a steward needs of each.
SELECT b.name, b.queue, b.spelled, b.direction, b.domain, b.reply_to, b.batch_size
FROM {schema}.bridge b
ORDER BY b.name;

-- name: explain_queue
-- What keeps this role from moving messages of a queue; see queue_problem.
SELECT {schema}.queue_problem(%(queue)s, %(direction)s, current_user::text), current_user::text,
    current_database()::text;
