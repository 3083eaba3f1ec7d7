-- Operators' changes of limits; see also 12_changing.sql.

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

-- Sets the columns of a limit that p_given names; what was set before and is not named stays.
-- Returns NULL, or why nothing was changed: 'unknown', there is no shared limit of this name; or
-- what contradicts the rest: 'concurrency', more than 1 where the order counts; 'burst', without a
-- rate; 'on_trouble', without an order.
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
    change {schema}.change := {schema}.begin_change(
        'limit', p_name, p_operator, p_reason, p_call, p_again);
    ordered boolean := CASE WHEN 'ordered' = ANY (p_given) THEN p_ordered
        ELSE coalesce((change.before ->> 'ordered')::boolean, false) END;
    starts double precision := CASE
        WHEN 'starts_per_second' = ANY (p_given) THEN p_starts_per_second
        ELSE (change.before ->> 'starts_per_second')::double precision END;
BEGIN
    CASE
        WHEN change.is_made THEN RETURN NULL;
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
    PERFORM {schema}.end_change(change, 'LIMIT_SET', {schema}.domains_of_limit(p_name));
    RETURN NULL;
END
$$;

-- Removes what is set of a limit: what is declared holds again. Returns NULL, or 'unset' if nothing
-- was set.
CREATE FUNCTION {schema}.clear_limit(
    p_name text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'limit', p_name, p_operator, p_reason, p_call, p_again);
BEGIN
    IF change.is_made THEN
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.limit_set s WHERE s.name = p_name;
    IF NOT FOUND THEN
        RETURN 'unset';
    END IF;
    PERFORM {schema}.end_change(change, 'LIMIT_CLEARED', {schema}.domains_of_limit(p_name));
    RETURN NULL;
END
$$;
