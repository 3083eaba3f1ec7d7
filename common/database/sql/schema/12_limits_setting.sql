-- Operators' changes of limits.

-- A limit in force as JSON; NULL: there is none.
CREATE FUNCTION {schema}.limit_settings(p_name text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT to_jsonb(f) - 'name'::text FROM {schema}.limit_in_force f WHERE f.name = p_name
$$;

-- The domains whose audit trails have the changes of a limit.
CREATE FUNCTION {schema}.domains_of_limit(p_name text) RETURNS text[]
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN strpos(p_name, ' ') > 0 THEN ARRAY[split_part(p_name, ' ', 1)] ELSE ARRAY(
        SELECT DISTINCT split_part(c, ' ', 1)
        FROM {schema}.limit_declared d, unnest(d.covers) c
        WHERE d.name = p_name
        ORDER BY 1) END
$$;

-- Leaves an event in each domain of a limit, if that has changed or an operator is named.
CREATE FUNCTION {schema}.note_limit(
    p_kind text, p_name text, p_before jsonb, p_operator text, p_reason text, p_call bigint
) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.domain_event (call, domain, kind, operator, message, details)
    SELECT p_call, d, p_kind, p_operator, p_reason,
        json_build_object('limit', replace(p_name, ' ', '/'), 'before', p_before, 'after', a)
    FROM unnest({schema}.domains_of_limit(p_name)) d, {schema}.limit_settings(p_name) a
    WHERE a IS DISTINCT FROM p_before OR p_operator IS NOT NULL
$$;

-- Whether a call has left its event.
CREATE FUNCTION {schema}.was_noted(p_name text, p_call bigint) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.domain_event e
        WHERE e.domain = ANY ({schema}.domains_of_limit(p_name)) AND e.call = p_call)
$$;

-- Sets the columns of a limit that p_given names; what was set before and is not named stays.
-- Leaves an event if something changes or an operator is named. With p_again it is the second try
-- of its call, and does nothing if the first has left an event. Returns NULL, or why nothing was
-- changed: 'unknown', there is no shared limit of this name; or what contradicts the rest:
-- 'concurrency', more than 1 where the order counts; 'burst', without a rate; 'on_trouble', without
-- an order.
CREATE FUNCTION {schema}.set_limit(
    p_name text, p_given text[], p_operator text, p_reason text,
    p_concurrency integer DEFAULT NULL, p_starts_per_second double precision DEFAULT NULL,
    p_burst integer DEFAULT NULL, p_ordered boolean DEFAULT NULL,
    p_on_trouble text DEFAULT NULL, p_fair boolean DEFAULT NULL,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    before jsonb;
    ordered boolean;
    starts double precision;
BEGIN
    PERFORM {schema}.begin_limit_change();
    IF p_again AND {schema}.was_noted(p_name, p_call) THEN
        RETURN NULL;
    END IF;
    before := {schema}.limit_settings(p_name);
    ordered := CASE WHEN 'ordered' = ANY (p_given) THEN p_ordered
                    ELSE coalesce((before ->> 'ordered')::boolean, false) END;
    starts := CASE WHEN 'starts_per_second' = ANY (p_given) THEN p_starts_per_second
                   ELSE (before ->> 'starts_per_second')::double precision END;
    CASE
        WHEN strpos(p_name, ' ') = 0
            AND NOT EXISTS (SELECT FROM {schema}.limit_declared d WHERE d.name = p_name)
            THEN RETURN 'unknown';
        WHEN ordered AND 'concurrency' = ANY (p_given) AND p_concurrency IS DISTINCT FROM 1
            THEN RETURN 'concurrency';
        WHEN p_burst IS NOT NULL AND starts IS NULL THEN RETURN 'burst';
        WHEN p_on_trouble IS NOT NULL AND NOT ordered THEN RETURN 'on_trouble';
        ELSE NULL;
    END CASE;
    INSERT INTO {schema}.limit_set (name, given) VALUES (p_name, '{}') ON CONFLICT DO NOTHING;
    UPDATE {schema}.limit_set s SET
        concurrency = CASE WHEN 'concurrency' = ANY (p_given)
            THEN p_concurrency ELSE s.concurrency END,
        starts_per_second = CASE WHEN 'starts_per_second' = ANY (p_given)
            THEN p_starts_per_second ELSE s.starts_per_second END,
        burst = CASE WHEN 'burst' = ANY (p_given) THEN p_burst ELSE s.burst END,
        ordered = CASE WHEN 'ordered' = ANY (p_given) THEN p_ordered ELSE s.ordered END,
        on_trouble = CASE WHEN 'on_trouble' = ANY (p_given) THEN p_on_trouble
            ELSE s.on_trouble END,
        fair = CASE WHEN 'fair' = ANY (p_given) THEN p_fair ELSE s.fair END,
        given = ARRAY(SELECT DISTINCT g FROM unnest(s.given || p_given) g ORDER BY 1),
        operator = p_operator, reason = p_reason, set_at = clock_timestamp()
    WHERE s.name = p_name;
    PERFORM {schema}.put_in_force();
    PERFORM {schema}.note_limit('LIMIT_SET', p_name, before, p_operator, p_reason, p_call);
    RETURN NULL;
END
$$;

-- Removes what is set of a limit: what is declared holds again. Records and repeats as set_limit.
-- Returns NULL, or 'unset' if nothing was set.
CREATE FUNCTION {schema}.clear_limit(
    p_name text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    before jsonb;
BEGIN
    PERFORM {schema}.begin_limit_change();
    IF p_again AND {schema}.was_noted(p_name, p_call) THEN
        RETURN NULL;
    END IF;
    before := {schema}.limit_settings(p_name);
    DELETE FROM {schema}.limit_set s WHERE s.name = p_name;
    IF NOT FOUND THEN
        RETURN 'unset';
    END IF;
    PERFORM {schema}.put_in_force();
    PERFORM {schema}.note_limit('LIMIT_CLEARED', p_name, before, p_operator, p_reason, p_call);
    RETURN NULL;
END
$$;
