-- Operators' changes of domains.

-- Changes the settings of a domain that p_given names. Leaves an event if something changes or an
-- operator is named. Locks the domain's row. With p_again it is the second try of its call, and
-- does nothing if the first has left an event.
CREATE FUNCTION {schema}.configure_domain(
    p_domain text, p_given text[], p_operator text, p_reason text,
    p_accepting boolean DEFAULT NULL, p_paused boolean DEFAULT NULL,
    p_max_depth integer DEFAULT NULL, p_warn_depth integer DEFAULT NULL,
    p_max_waiting_per_key integer DEFAULT NULL, p_keep interval DEFAULT NULL,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    before json;
    after json;
    pauses boolean := CASE WHEN 'paused' = ANY (p_given) THEN p_paused END;
    problem text := CASE
        WHEN 'keep' = ANY (p_given)
            AND (p_keep IS NULL OR p_keep NOT BETWEEN interval '0' AND interval '36525 days')
            THEN 'p_keep must be from 0 (finished commands stay for a minute) to 36525 days'
        WHEN p_max_depth <= 0 THEN 'p_max_depth must be at least 1, or NULL for no limit'
        WHEN p_warn_depth <= 0 THEN 'p_warn_depth must be at least 1, or NULL for no warning'
        WHEN p_max_waiting_per_key <= 0
            THEN 'p_max_waiting_per_key must be at least 1, or NULL for no limit'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = problem;
    END IF;
    INSERT INTO {schema}.domain (name) VALUES (p_domain) ON CONFLICT (name) DO NOTHING;
    SELECT {schema}.domain_settings(d, p_given) INTO before
    FROM {schema}.domain d WHERE d.name = p_domain FOR UPDATE;
    IF p_again AND EXISTS (
        SELECT FROM {schema}.domain_event e WHERE e.domain = p_domain AND e.call = p_call)
    THEN
        RETURN;
    END IF;
    UPDATE {schema}.domain d SET
        accepting = CASE WHEN 'accepting' = ANY (p_given) THEN p_accepting ELSE d.accepting END,
        paused = coalesce(pauses, d.paused),
        max_depth = CASE WHEN 'max_depth' = ANY (p_given) THEN p_max_depth ELSE d.max_depth END,
        warn_depth = CASE WHEN 'warn_depth' = ANY (p_given) THEN p_warn_depth ELSE d.warn_depth END,
        max_waiting_per_key = CASE WHEN 'max_waiting_per_key' = ANY (p_given)
            THEN p_max_waiting_per_key ELSE d.max_waiting_per_key END,
        keep = CASE WHEN 'keep' = ANY (p_given) THEN p_keep ELSE d.keep END
    WHERE d.name = p_domain
    RETURNING {schema}.domain_settings(d, p_given) INTO after;
    IF after::text <> before::text OR p_operator IS NOT NULL THEN
        INSERT INTO {schema}.domain_event (call, domain, kind, operator, message, details)
        VALUES (p_call, p_domain, CASE pauses WHEN true THEN 'PAUSED' WHEN false THEN 'RESUMED'
                    ELSE 'CONFIGURED' END,
                p_operator, p_reason, json_build_object('before', before, 'after', after));
    END IF;
    IF pauses THEN
        -- Workers release the claims that they have not started.
        PERFORM {schema}.notify('{channel}_pause', p_domain);
    ELSIF NOT pauses THEN
        PERFORM {schema}.wake(p_domain);
    END IF;
END
$$;

-- The settings that p_names names, as JSON; keep in seconds.
CREATE FUNCTION {schema}.domain_settings(p_domain {schema}.domain, p_names text[]) RETURNS json
LANGUAGE sql IMMUTABLE
AS $$
    SELECT json_object_agg(key, CASE key
        WHEN 'keep' THEN to_json(extract(epoch FROM p_domain.keep)::double precision)
        ELSE value END)
    FROM json_each(row_to_json(p_domain)) WHERE key = ANY (p_names)
$$;
