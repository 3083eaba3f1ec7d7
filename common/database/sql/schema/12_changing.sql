-- The frame of operators' changes of limits, breakers, schedules and bridges: each begins with
-- begin_change and ends with end_change, and says between them what it changes. With p_again it is
-- the second try of its call, and does nothing if the first has left an event.

-- A change that has begun.
CREATE TYPE {schema}.change AS (
    -- 'limit', 'breaker', 'schedule' or 'bridge'.
    subject text,
    name text,
    operator text,
    reason text,
    call bigint,
    -- Whether the first try of the call has made it.
    is_made boolean,
    -- As settings_in_force returns it.
    before jsonb
);

-- A limit, breaker, schedule or bridge in force as JSON; NULL: there is none.
CREATE FUNCTION {schema}.settings_in_force(p_subject text, p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN CASE p_subject
        WHEN 'limit' THEN {schema}.limit_settings(p_name)
        WHEN 'breaker' THEN {schema}.breaker_terms(p_name)
        WHEN 'schedule' THEN {schema}.schedule_settings(p_name)
        WHEN 'bridge' THEN {schema}.bridge_settings(p_name) END;
END
$$;

-- Whether a call has left its event; one of anything but a breaker, in whatever domain.
CREATE FUNCTION {schema}.was_noted(p_subject text, p_name text, p_call bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF p_subject = 'breaker' THEN
        RETURN EXISTS (
            SELECT FROM {schema}.breaker_event e WHERE e.breaker = p_name AND e.call = p_call);
    END IF;
    RETURN EXISTS (
        SELECT FROM {schema}.domain_event e
        WHERE e.call = p_call AND e.details ->> p_subject = replace(p_name, ' ', '/'));
END
$$;

-- Waits for other changes of the same subject.
CREATE FUNCTION {schema}.begin_change(
    p_subject text, p_name text, p_operator text, p_reason text, p_call bigint, p_again boolean
) RETURNS {schema}.change
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    CASE p_subject
        WHEN 'limit' THEN PERFORM {schema}.begin_limit_change();
        WHEN 'breaker' THEN PERFORM {schema}.begin_breaker_change();
        WHEN 'schedule' THEN PERFORM {schema}.begin_schedule_change();
        WHEN 'bridge' THEN PERFORM {schema}.begin_bridge_change();
    END CASE;
    -- A statement of its own: it sees what the lock has waited for.
    RETURN ROW(
        p_subject, p_name, p_operator, p_reason, p_call,
        p_again AND {schema}.was_noted(p_subject, p_name, p_call),
        {schema}.settings_in_force(p_subject, p_name))::{schema}.change;
END
$$;

-- Puts a change in force. Leaves an event of a breaker; of anything else one in each of
-- p_domains, if something has changed or an operator is named.
CREATE FUNCTION {schema}.end_change(
    p_change {schema}.change, p_kind text, p_domains text[] DEFAULT '{}'
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    after jsonb;
BEGIN
    CASE p_change.subject
        WHEN 'limit' THEN PERFORM {schema}.put_limits_in_force();
        WHEN 'breaker' THEN PERFORM {schema}.put_breakers_in_force();
        WHEN 'schedule' THEN PERFORM {schema}.put_schedules_in_force();
        WHEN 'bridge' THEN NULL;  -- In force as it is.
    END CASE;
    after := {schema}.settings_in_force(p_change.subject, p_change.name);
    IF p_change.subject = 'breaker' THEN
        PERFORM {schema}.note_breaker(
            p_change.name, p_kind, json_build_object('before', p_change.before, 'after', after),
            p_change.operator, p_change.reason, p_change.call);
    ELSIF after IS DISTINCT FROM p_change.before OR p_change.operator IS NOT NULL THEN
        INSERT INTO {schema}.domain_event (call, domain, kind, operator, message, details)
        SELECT p_change.call, d, p_kind, p_change.operator, p_change.reason,
            json_build_object(p_change.subject, replace(p_change.name, ' ', '/'),
                              'before', p_change.before, 'after', after)
        FROM unnest(p_domains) d;
    END IF;
END
$$;
