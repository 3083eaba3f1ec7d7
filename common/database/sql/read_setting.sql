-- Whether a session's setting is the wanted one, in whatever unit, or a stricter timeout.
SELECT CASE WHEN name LIKE '%%timeout'
        THEN setting::bigint BETWEEN 1
            AND (extract(epoch FROM %(wanted)s::text::interval) * 1000::numeric)::bigint
        ELSE setting = %(wanted)s END,
    current_setting(name)
FROM pg_settings WHERE name = %(name)s;
