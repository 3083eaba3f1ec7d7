-- Operators' changes of schedules; see also 12_changing.sql. Each returns NULL, or why nothing was
-- changed: 'unknown', there is no such schedule; or what the function says.

-- A schedule in force as JSON, without its data; NULL: there is none.
CREATE FUNCTION {schema}.schedule_settings(p_name text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT to_jsonb((s.terms)::{schema}.schedule_columns)
        || jsonb_build_object('app', s.app, 'paused', s.paused)
    FROM {schema}.schedule s WHERE s.name = p_name
$$;

-- Adds a schedule, or replaces one; a declared one is overridden until it is removed.
CREATE FUNCTION {schema}.add_schedule(
    p_name text, p_terms json, p_data text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'schedule', p_name, p_operator, p_reason, p_call, p_again);
    terms {schema}.schedule_columns := json_populate_record(
        NULL::{schema}.schedule_columns, p_terms);
BEGIN
    IF change.is_made THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.schedule_added AS a (name, terms, data, operator, reason)
    VALUES (p_name, terms, p_data, p_operator, p_reason)
    ON CONFLICT (name) DO UPDATE SET
        terms = EXCLUDED.terms, data = EXCLUDED.data, operator = EXCLUDED.operator,
        reason = EXCLUDED.reason, added_at = EXCLUDED.added_at;
    PERFORM {schema}.end_change(change, 'SCHEDULE_ADDED', ARRAY[terms.domain::text]);
    RETURN NULL;
END
$$;

-- Removes an added schedule; what is declared holds again. One that is only declared is removed if
-- no living node runs its type; otherwise 'declared'.
CREATE FUNCTION {schema}.remove_schedule(
    p_name text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'schedule', p_name, p_operator, p_reason, p_call, p_again);
    domain text := change.before ->> 'domain';
BEGIN
    IF change.is_made THEN
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.schedule_added a WHERE a.name = p_name;
    IF NOT FOUND THEN
        IF domain IS NULL THEN
            RETURN 'unknown';
        ELSIF {schema}.is_handled(domain, change.before ->> 'type') THEN
            RETURN 'declared';
        END IF;
        DELETE FROM {schema}.schedule_declared d WHERE d.name = p_name;
    END IF;
    PERFORM {schema}.end_change(change, 'SCHEDULE_REMOVED', ARRAY[domain]);
    RETURN NULL;
END
$$;

-- A paused schedule misses its ticks; resumed, it goes on with the next one.
CREATE FUNCTION {schema}.pause_schedule(
    p_name text, p_paused boolean, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'schedule', p_name, p_operator, p_reason, p_call, p_again);
BEGIN
    CASE
        WHEN change.is_made THEN RETURN NULL;
        WHEN change.before IS NULL THEN RETURN 'unknown';
        ELSE NULL;
    END CASE;
    UPDATE {schema}.schedule s SET paused = p_paused WHERE s.name = p_name;
    PERFORM {schema}.end_change(
        change, CASE WHEN p_paused THEN 'SCHEDULE_PAUSED' ELSE 'SCHEDULE_RESUMED' END,
        ARRAY[change.before ->> 'domain']);
    RETURN NULL;
END
$$;

-- Sends the command of a schedule now, also of a paused one; its ticks stay. Returns its domain and
-- key, and what enqueue does, or the refusal 'unknown'.
CREATE FUNCTION {schema}.run_schedule(
    p_name text, p_command_id uuid, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false,
    OUT domain text, OUT key text, OUT refusal text, OUT depth bigint, OUT max_depth integer,
    OUT warn_depth integer, OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    due {schema}.schedule;
    terms {schema}.schedule_columns;
BEGIN
    SELECT s.* INTO due FROM {schema}.schedule s WHERE s.name = p_name;
    IF NOT FOUND THEN
        refusal := 'unknown';
        RETURN;
    END IF;
    terms := due.terms;
    domain := terms.domain;
    key := terms.key;
    SELECT s.* INTO refusal, depth, max_depth, warn_depth, oldest_age
    FROM {schema}.send_scheduled(
        due, p_command_id, NULL, json_build_object('schedule', p_name),
        p_operator, p_reason, p_call, p_again) s;
END
$$;
