-- Declarations of breakers, and operators' changes; see also 12_changing.sql.

-- The latest declaration of each breaker.
CREATE FUNCTION {schema}.latest_breakers() RETURNS SETOF {schema}.breaker_declared
LANGUAGE sql STABLE
AS $$
    SELECT DISTINCT ON (d.name) d.*
    FROM {schema}.breaker_declared d
    ORDER BY d.name, d.declared_at DESC, d.app
$$;

-- Forgets the breaker p_name, or with NULL every one, if no app declares it; but one that an
-- operator keeps open stays so, and one of which terms are set stays as a closed one.
CREATE FUNCTION {schema}.forget_undeclared_breakers(p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    undeclared {schema}.breaker[] := ARRAY(
        SELECT b FROM {schema}.breaker b
        WHERE b.name = coalesce(p_name, b.name)
            AND NOT EXISTS (SELECT FROM {schema}.breaker_declared d WHERE d.name = b.name));
BEGIN
    PERFORM {schema}.announce_breaker(b, true) FROM unnest(undeclared) b WHERE b.covers <> '{}';
    DELETE FROM {schema}.breaker_probe p USING unnest(undeclared) u WHERE p.breaker = u.name;
    UPDATE {schema}.breaker b SET
        state = CASE WHEN b.state = 'OPEN' AND b.retry_at IS NULL THEN 'OPEN' ELSE 'CLOSED' END,
        opened_at = CASE WHEN b.state = 'OPEN' AND b.retry_at IS NULL THEN b.opened_at END,
        covers = '{}', failed_at = '{}', retry_at = NULL
    FROM unnest(undeclared) u WHERE b.name = u.name;
    DELETE FROM {schema}.breaker b
    USING unnest(undeclared) u
    WHERE b.name = u.name AND b.state <> 'OPEN'
        AND NOT EXISTS (SELECT FROM {schema}.breaker_set s WHERE s.name = b.name);
END
$$;

-- Puts in force what is declared and set. States stay; a new cooldown holds for one that has begun,
-- too.
CREATE FUNCTION {schema}.put_breakers_in_force() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    before {schema}.breaker[];
BEGIN
    -- In the order of names, as reports lock them.
    PERFORM FROM {schema}.breaker b ORDER BY b.name FOR UPDATE;
    before := ARRAY(SELECT b FROM {schema}.breaker b);
    PERFORM {schema}.forget_undeclared_breakers(NULL);
    INSERT INTO {schema}.breaker AS b (
        name, failures, window_seconds, cooldown_seconds, probes, covers)
    SELECT l.name, coalesce(s.failures, l.failures), coalesce(s.window_seconds, l.window_seconds),
        coalesce(s.cooldown_seconds, l.cooldown_seconds), coalesce(s.probes, l.probes),
        ARRAY(SELECT DISTINCT c FROM {schema}.breaker_declared d, unnest(d.covers) c
              WHERE d.name = l.name ORDER BY c)
    FROM {schema}.latest_breakers() l
    LEFT JOIN {schema}.breaker_set s ON s.name = l.name
    ORDER BY l.name
    ON CONFLICT (name) DO UPDATE SET
        failures = EXCLUDED.failures, window_seconds = EXCLUDED.window_seconds,
        cooldown_seconds = EXCLUDED.cooldown_seconds, probes = EXCLUDED.probes,
        covers = EXCLUDED.covers,
        retry_at = b.retry_at + CASE WHEN b.state = 'OPEN'
            THEN make_interval(secs => EXCLUDED.cooldown_seconds - b.cooldown_seconds)
            ELSE '0' END
    WHERE (b.failures, b.window_seconds, b.cooldown_seconds, b.probes, b.covers)
        IS DISTINCT FROM (EXCLUDED.failures, EXCLUDED.window_seconds, EXCLUDED.cooldown_seconds,
                          EXCLUDED.probes, EXCLUDED.covers);
    PERFORM {schema}.announce_breaker(b, true), {schema}.end_deferrals(b.name)
    FROM unnest(before) e JOIN {schema}.breaker b ON b.name = e.name
    WHERE b.retry_at < e.retry_at;
END
$$;

-- Changes of what is declared and set wait for each other; none waits for a call.
CREATE FUNCTION {schema}.begin_breaker_change() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    LOCK TABLE {schema}.breaker_declared IN SHARE ROW EXCLUSIVE MODE;
END
$$;

-- A declaration as JSON, without its name, app and time.
CREATE FUNCTION {schema}.breaker_declaration(p_declared {schema}.breaker_declared) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT to_jsonb(p_declared) - '{name,app,declared_at}'::text[]
$$;

-- Makes p_breakers, an array of objects with the columns of breaker_declared, all that an app
-- declares, as declare_limits does, and returns the same.
CREATE FUNCTION {schema}.declare_breakers(
    p_app text, p_breakers json, OUT name text, OUT before jsonb, OUT after jsonb
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    earlier {schema}.breaker_declared[];
BEGIN
    IF json_array_length(p_breakers) = 0
        AND NOT EXISTS (SELECT FROM {schema}.breaker_declared d WHERE d.app = p_app)
    THEN
        RETURN;
    END IF;
    PERFORM {schema}.begin_breaker_change();
    earlier := ARRAY(SELECT d FROM {schema}.latest_breakers() d);
    DELETE FROM {schema}.breaker_declared d WHERE d.app = p_app;
    INSERT INTO {schema}.breaker_declared (
        app, name, failures, window_seconds, cooldown_seconds, probes, counts, covers)
    SELECT p_app, b.name, b.failures, b.window_seconds, b.cooldown_seconds, b.probes, b.counts,
        b.covers
    FROM json_populate_recordset(NULL::{schema}.breaker_declared, p_breakers) b;
    PERFORM {schema}.put_breakers_in_force();
    PERFORM {schema}.note_breaker(e.name, 'UNDECLARED', json_build_object('app', p_app))
    FROM unnest(earlier) e
    WHERE NOT EXISTS (SELECT FROM {schema}.breaker_declared d WHERE d.name = e.name);
    RETURN QUERY
    SELECT e.name::text, {schema}.breaker_declaration(e), CASE WHEN l.name IS NOT NULL
        THEN {schema}.breaker_declaration(l) END
    FROM unnest(earlier) e
    LEFT JOIN {schema}.latest_breakers() l ON l.name = e.name
    WHERE (l.name IS NULL OR {schema}.breaker_declaration(e) <> {schema}.breaker_declaration(l))
        AND {schema}.runs_any_of(e.covers)
    ORDER BY e.name;
END
$$;

-- Opens a breaker, closes it, or resets it (closes it, and forgets failures), as p_action says, and
-- leaves an event. Locks only the breaker: its terms stay. Returns NULL, or
-- 'unknown' if there is no such breaker.
CREATE FUNCTION {schema}.steer_breaker(
    p_name text, p_action text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    found_breaker {schema}.breaker;
BEGIN
    SELECT b.* INTO found_breaker FROM {schema}.breaker b WHERE b.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    IF p_again AND {schema}.was_noted('breaker', p_name, p_call) THEN
        RETURN NULL;
    END IF;
    IF p_action = 'open' THEN
        PERFORM {schema}.open_breaker(found_breaker, true);
    ELSIF p_action = 'reset' OR found_breaker.state <> 'CLOSED' THEN
        PERFORM {schema}.close_breaker(found_breaker),
            {schema}.forget_undeclared_breakers(p_name);
    END IF;
    PERFORM {schema}.note_breaker(
        p_name, CASE p_action WHEN 'open' THEN 'OPENED' WHEN 'close' THEN 'CLOSED' ELSE 'RESET' END,
        json_build_object('before', found_breaker.state), p_operator, p_reason, p_call);
    RETURN NULL;
END
$$;

-- The terms in force, as JSON; NULL: there is no such breaker.
CREATE FUNCTION {schema}.breaker_terms(p_name text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('failures', b.failures, 'window', b.window_seconds,
        'cooldown', b.cooldown_seconds, 'probes', b.probes)
    FROM {schema}.breaker b WHERE b.name = p_name
$$;

-- Sets those terms of a breaker that are given. Returns what steer_breaker does.
CREATE FUNCTION {schema}.set_breaker(
    p_name text, p_operator text, p_reason text, p_failures integer DEFAULT NULL,
    p_window_seconds double precision DEFAULT NULL,
    p_cooldown_seconds double precision DEFAULT NULL, p_probes integer DEFAULT NULL,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'breaker', p_name, p_operator, p_reason, p_call, p_again);
BEGIN
    CASE
        WHEN change.is_made THEN RETURN NULL;
        WHEN change.before IS NULL THEN RETURN 'unknown';
        ELSE NULL;
    END CASE;
    INSERT INTO {schema}.breaker_set AS s (
        name, failures, window_seconds, cooldown_seconds, probes, operator, reason)
    VALUES (
        p_name, p_failures, p_window_seconds, p_cooldown_seconds, p_probes, p_operator, p_reason)
    ON CONFLICT (name) DO UPDATE SET
        failures = coalesce(EXCLUDED.failures, s.failures),
        window_seconds = coalesce(EXCLUDED.window_seconds, s.window_seconds),
        cooldown_seconds = coalesce(EXCLUDED.cooldown_seconds, s.cooldown_seconds),
        probes = coalesce(EXCLUDED.probes, s.probes),
        operator = EXCLUDED.operator, reason = EXCLUDED.reason, set_at = clock_timestamp();
    PERFORM {schema}.end_change(change, 'SET');
    RETURN NULL;
END
$$;

-- Removes what is set of a breaker: what is declared holds again. Returns NULL, or 'unset' if
-- nothing was set.
CREATE FUNCTION {schema}.clear_breaker(
    p_name text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'breaker', p_name, p_operator, p_reason, p_call, p_again);
BEGIN
    IF change.is_made THEN
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.breaker_set s WHERE s.name = p_name;
    IF NOT FOUND THEN
        RETURN 'unset';
    END IF;
    PERFORM {schema}.end_change(change, 'CLEARED');
    RETURN NULL;
END
$$;
