-- The most frequent first.
SELECT domain, type, error_code, count(*), min(failed_at), max(failed_at)
FROM {schema}.troubleshooting t
WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
    AND (%(type)s::text IS NULL OR t.type = %(type)s)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
    AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
GROUP BY domain, type, error_code
ORDER BY count(*) DESC, domain, type, error_code
LIMIT %(limit)s;
