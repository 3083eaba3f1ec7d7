-- What operators set for a domain, and a record of the operator and the reason. Both functions run
-- with the owner's rights, so that an operator's role can change nothing without a record.

-- One row for each change; message is the reason.
CREATE TABLE {schema}.domain_event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    domain text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    operator text,
    message text,
    details json,
    PRIMARY KEY (domain, id)
);

-- p_given names the settings to change; the others stay. An application that configures its
-- domains at each start leaves no event unless something changes or an operator is named.
CREATE FUNCTION {schema}.configure_domain(
    p_domain text, p_given text[], p_accepting boolean, p_max_depth integer,
    p_warn_depth integer, p_keep interval, p_operator text, p_reason text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before json;
    after json;
    problem text := CASE
        WHEN 'keep' = ANY (p_given)
            AND (p_keep IS NULL OR p_keep NOT BETWEEN interval '0' AND interval '36525 days')
            THEN 'p_keep must be from 0 (finished commands are not kept) to 36525 days'
        WHEN p_max_depth <= 0 THEN 'p_max_depth must be at least 1, or NULL for no limit'
        WHEN p_warn_depth <= 0 THEN 'p_warn_depth must be at least 1, or NULL for no warning'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = problem;
    END IF;
    INSERT INTO {schema}.domain (name) VALUES (p_domain) ON CONFLICT (name) DO NOTHING;
    SELECT {schema}.domain_settings(d, p_given) INTO before
    FROM {schema}.domain d WHERE d.name = p_domain FOR UPDATE;
    UPDATE {schema}.domain d SET
        accepting = CASE WHEN 'accepting' = ANY (p_given) THEN p_accepting ELSE d.accepting END,
        max_depth = CASE WHEN 'max_depth' = ANY (p_given) THEN p_max_depth ELSE d.max_depth END,
        warn_depth = CASE WHEN 'warn_depth' = ANY (p_given) THEN p_warn_depth ELSE d.warn_depth END,
        keep = CASE WHEN 'keep' = ANY (p_given) THEN p_keep ELSE d.keep END
    WHERE d.name = p_domain
    RETURNING {schema}.domain_settings(d, p_given) INTO after;
    IF after::text <> before::text OR p_operator IS NOT NULL THEN
        INSERT INTO {schema}.domain_event (domain, kind, operator, message, details)
        VALUES (p_domain, 'CONFIGURED', p_operator, p_reason,
                json_build_object('before', before, 'after', after));
    END IF;
END
$$;

-- Those settings that p_names names; keep in seconds.
CREATE FUNCTION {schema}.domain_settings(p_domain {schema}.domain, p_names text[]) RETURNS json
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_object_agg(key, CASE key
        WHEN 'keep' THEN to_json(extract(epoch FROM p_domain.keep)::double precision)
        ELSE value END)
    FROM json_each(row_to_json(p_domain)) WHERE key = ANY (p_names)
$$;

CREATE FUNCTION {schema}.set_paused(
    p_domain text, p_paused boolean, p_operator text, p_reason text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed boolean;
BEGIN
    INSERT INTO {schema}.domain (name) VALUES (p_domain) ON CONFLICT (name) DO NOTHING;
    SELECT d.paused <> p_paused INTO changed
    FROM {schema}.domain d WHERE d.name = p_domain FOR UPDATE;
    IF changed OR p_operator IS NOT NULL THEN
        INSERT INTO {schema}.domain_event (domain, kind, operator, message)
        VALUES (p_domain, CASE WHEN p_paused THEN 'PAUSED' ELSE 'RESUMED' END, p_operator, p_reason);
    END IF;
    UPDATE {schema}.domain SET paused = p_paused WHERE name = p_domain;
    IF p_paused THEN
        -- Workers release what they have claimed and not started.
        PERFORM {schema}.notify('{channel}_pause', p_domain);
    ELSE
        PERFORM {schema}.wake(p_domain);
    END IF;
END
$$;
