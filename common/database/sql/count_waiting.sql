-- Counts what cancel_ready and cancel_scheduled would take now.
SELECT (
    SELECT count(*) FROM {schema}.ready
    WHERE domain = %(domain)s
        AND (%(type)s::text IS NULL OR type = %(type)s)
        AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
        AND (lease_until IS NULL OR {schema}.is_waiting(claimer, lease_until))
) + (
    SELECT count(*) FROM {schema}.scheduled
    WHERE domain = %(domain)s
        AND (%(type)s::text IS NULL OR type = %(type)s)
        AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
);
