-- Seconds until the next scheduled command is due, and until the next lease ends.
SELECT
    (SELECT extract(epoch FROM due_at - clock_timestamp()) FROM {schema}.scheduled
     WHERE isfinite(due_at) ORDER BY due_at, id LIMIT 1)::double precision,
    (SELECT extract(epoch FROM min(lease_until) - clock_timestamp()) FROM {schema}.ready
     WHERE domain = ANY (%(domains)s))::double precision;
