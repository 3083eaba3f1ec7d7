-- Schedules; see also 19_schedules.sql.

-- name: read_due_schedules
-- Those that stewards check first, and in how many seconds. Not `skipped` ones, and without
-- `reads_cron` none that have a cron line.
SELECT extract(epoch FROM s.check_at - clock_timestamp())::double precision, clock_timestamp(),
    s.name, (s.terms).cron, (s.terms).every, (s.terms).timezone, (s.terms).missed,
    (s.terms).jitter, s.counts_from, s.next_tick, s.last_error
FROM {schema}.schedule s
WHERE s.check_at < 'infinity' AND s.name <> ALL (%(skipped)s)
    AND (%(reads_cron)s OR (s.terms).cron IS NULL)
ORDER BY s.check_at
LIMIT %(count)s;

-- name: read_schedules
-- Without their data, which monitors do not see.
SELECT s.name, (s.terms).domain, (s.terms).type, (s.terms).cron, (s.terms).every,
    (s.terms).timezone, (s.terms).missed, (s.terms).jitter, (s.terms).priority,
    (s.terms).max_attempts, (s.terms).key, s.paused, s.last_tick, s.last_command_id, s.left_out,
    s.left_out_at, s.last_error, s.next_tick, s.counts_from, a.operator, a.reason, a.added_at,
    ARRAY(SELECT d.app FROM {schema}.schedule_declared d
          WHERE d.name = s.name ORDER BY d.declared_at DESC, d.app),
    {schema}.is_handled((s.terms).domain, (s.terms).type), clock_timestamp()
FROM {schema}.schedule s
LEFT JOIN {schema}.schedule_added a ON a.name = s.name
WHERE %(name)s::text IS NULL OR s.name = %(name)s
ORDER BY s.name;

-- name: read_schedule_data
SELECT s.data FROM {schema}.schedule s WHERE s.name = %(name)s;

-- name: read_schedule_conflicts
-- Schedules of an app that others declare in another way, with these.
SELECT d.name, o.app
FROM {schema}.schedule_declared d
JOIN {schema}.schedule_declared o ON o.name = d.name AND o.app <> d.app
WHERE d.app = %(app)s AND (o.terms, o.data) IS DISTINCT FROM (d.terms, d.data)
ORDER BY d.name, o.app;
