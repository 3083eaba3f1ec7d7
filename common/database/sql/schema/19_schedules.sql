-- Schedules: commands that are sent at certain times. Registries declare them, operators add others
-- or replace a declared one, and stewards send a command for each tick. Its nodes compute the
-- ticks, because they read cron lines; see schedule_round.py.

-- When a schedule sends which command; the data is a column of its own. every and jitter are in
-- seconds.
CREATE TYPE {schema}.schedule_columns AS (
    domain {schema}.name, type {schema}.name, cron text, every integer, timezone text, missed text,
    jitter double precision, priority {schema}.priority, max_attempts {schema}.attempt_limit,
    key {schema}.key
);
CREATE DOMAIN {schema}.schedule_terms AS {schema}.schedule_columns CHECK (
    (VALUE).domain IS NOT NULL AND (VALUE).type IS NOT NULL AND (VALUE).priority IS NOT NULL
    AND ((VALUE).cron IS NULL) <> ((VALUE).every IS NULL)
    AND coalesce(length((VALUE).cron), 0) <= 1000 AND coalesce((VALUE).every, 1) > 0
    AND coalesce(length((VALUE).timezone) <= 100, false)
    AND coalesce((VALUE).jitter BETWEEN 0 AND 86400, false)
    AND coalesce((VALUE).missed IN ('one', 'all', 'none'), false));
REVOKE USAGE ON TYPE {schema}.schedule_columns FROM PUBLIC;
REVOKE USAGE ON DOMAIN {schema}.schedule_terms FROM PUBLIC;

-- What registries declare.
CREATE TABLE {schema}.schedule_declared (
    name text COLLATE "C",
    app text COLLATE "C",
    terms {schema}.schedule_terms NOT NULL,
    -- JSON.
    data text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, app)
);

-- What operators have added; it holds in place of a declaration.
CREATE TABLE {schema}.schedule_added (
    name text COLLATE "C" PRIMARY KEY,
    terms {schema}.schedule_terms NOT NULL,
    data text NOT NULL,
    operator text,
    reason text,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The schedules in force.
CREATE TABLE {schema}.schedule (
    name text COLLATE "C" PRIMARY KEY CHECK (name = name::{schema}.name),
    terms {schema}.schedule_terms NOT NULL,
    data text NOT NULL CHECK (data::{schema}.payload IS NOT NULL),
    -- That of the declaration; NULL if an operator has added it.
    app text COLLATE "C",
    paused boolean NOT NULL DEFAULT false,
    -- Later ticks count: the time of the latest change of their times, or of the resumption.
    counts_from timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- NULL: it is not computed yet, or the schedule is paused.
    next_tick timestamptz,
    -- When a steward must check it; NULL: never.
    check_at timestamptz DEFAULT clock_timestamp(),
    -- The latest tick for which there is a command, and that.
    last_tick timestamptz,
    last_command_id uuid,
    -- How many ticks were left out, and when some were last.
    left_out bigint NOT NULL DEFAULT 0,
    left_out_at timestamptz,
    -- Why the next tick is not sent although it is due.
    last_error text
);
CREATE INDEX schedule_by_check_at ON {schema}.schedule (check_at);

-- The schedules that should be in force: those that are added, else the latest declarations.
CREATE FUNCTION {schema}.schedules_in_effect(
    OUT name text, OUT terms {schema}.schedule_terms, OUT data text, OUT app text
) RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT a.name, a.terms, a.data, NULL FROM {schema}.schedule_added a
    UNION ALL
    SELECT * FROM (
        SELECT DISTINCT ON (d.name) d.name, d.terms, d.data, d.app
        FROM {schema}.schedule_declared d
        WHERE NOT EXISTS (SELECT FROM {schema}.schedule_added a WHERE a.name = d.name)
        ORDER BY d.name, d.declared_at DESC, d.app) latest
$$;

-- Changes of schedules wait for each other; none waits for a tick longer than that takes.
CREATE FUNCTION {schema}.begin_schedule_change() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    LOCK TABLE {schema}.schedule_declared IN SHARE ROW EXCLUSIVE MODE;
END
$$;

-- Puts in force what is declared and added; called after begin_schedule_change. Where the times of
-- a schedule have changed, its ticks count from now on.
CREATE FUNCTION {schema}.put_schedules_in_force() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM {schema}.schedule s
    WHERE NOT EXISTS (SELECT FROM {schema}.schedules_in_effect() e WHERE e.name = s.name);
    INSERT INTO {schema}.schedule AS s (name, terms, data, app)
    SELECT e.name, e.terms, e.data, e.app
    FROM {schema}.schedules_in_effect() e
    LEFT JOIN {schema}.schedule p ON p.name = e.name
    WHERE p.name IS NULL OR (p.terms, p.data, p.app) IS DISTINCT FROM (e.terms, e.data, e.app)
    ON CONFLICT (name) DO UPDATE SET
        terms = EXCLUDED.terms, data = EXCLUDED.data, app = EXCLUDED.app;
    PERFORM {schema}.wake_at(min(s.check_at)) FROM {schema}.schedule s WHERE s.next_tick IS NULL;
END
$$;

-- The trigger of schedule: a change of its times is one of its ticks.
CREATE FUNCTION {schema}.count_ticks_from_now() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    NEW.counts_from := clock_timestamp();
    NEW.next_tick := NULL;
    NEW.last_error := NULL;
    NEW.check_at := CASE WHEN NOT NEW.paused THEN NEW.counts_from END;
    RETURN NEW;
END
$$;

CREATE TRIGGER count_from_now BEFORE UPDATE ON {schema}.schedule
FOR EACH ROW
WHEN (((OLD.terms).cron, (OLD.terms).every, (OLD.terms).timezone, OLD.paused)
      IS DISTINCT FROM ((NEW.terms).cron, (NEW.terms).every, (NEW.terms).timezone, NEW.paused))
EXECUTE FUNCTION {schema}.count_ticks_from_now();

-- Makes p_schedules, an array of objects with name, terms and data, all that an app declares; one
-- that declares nothing, and declared nothing before, writes nothing. A schedule whose last tick
-- is in the future, because the server's clock was set back, counts from now.
CREATE FUNCTION {schema}.declare_schedules(p_app text, p_schedules json) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    IF json_array_length(p_schedules) = 0
        AND NOT EXISTS (SELECT FROM {schema}.schedule_declared d WHERE d.app = p_app)
    THEN
        RETURN;
    END IF;
    PERFORM {schema}.begin_schedule_change();
    DELETE FROM {schema}.schedule_declared d WHERE d.app = p_app;
    INSERT INTO {schema}.schedule_declared (name, app, terms, data)
    SELECT s ->> 'name', p_app,
        json_populate_record(NULL::{schema}.schedule_columns, s -> 'terms'), s ->> 'data'
    FROM json_array_elements(p_schedules) s;
    UPDATE {schema}.schedule s SET
        counts_from = clock_timestamp(), next_tick = NULL, check_at = clock_timestamp()
    WHERE s.last_tick > clock_timestamp() AND NOT s.paused;
    PERFORM {schema}.put_schedules_in_force();
END
$$;

-- Sends the commands of these ticks of a schedule, each with its id, and makes p_next the next
-- one; p_left_out ticks are left out. p_due: when the commands are due; NULL: now. Nothing if
-- another session has locked the schedule, or has moved it on to another tick ('taken'). An id that
-- is there already was sent. The first tick that the domain refuses is the next one, and is tried
-- again after p_retry seconds: returns why, as enqueue does.
CREATE FUNCTION {schema}.send_ticks(
    p_name text, p_counts_from timestamptz, p_tick timestamptz, p_ticks timestamptz[],
    p_command_ids uuid[], p_due timestamptz[], p_next timestamptz, p_left_out bigint,
    p_retry double precision
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    due {schema}.schedule;
    tick timestamptz;
    refused text;
    following timestamptz := p_next;
    again_at timestamptz := coalesce(p_next, 'infinity');
    sent integer := 0;
BEGIN
    SELECT s.* INTO due FROM {schema}.schedule s
    WHERE s.name = p_name AND s.counts_from = p_counts_from AND NOT s.paused
        AND s.next_tick IS NOT DISTINCT FROM p_tick
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 'taken';
    END IF;
    FOREACH tick IN ARRAY p_ticks LOOP
        SELECT s.refusal INTO refused
        FROM {schema}.send_scheduled(
            due, p_command_ids[sent + 1], p_due[sent + 1],
            json_build_object('schedule', p_name, 'tick',
                to_char(tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))) s;
        IF refused IS NOT NULL THEN
            following := tick;
            again_at := clock_timestamp() + make_interval(secs => p_retry);
            EXIT;
        END IF;
        sent := sent + 1;
    END LOOP;
    UPDATE {schema}.schedule s SET
        next_tick = following, check_at = again_at,
        last_tick = coalesce(p_ticks[sent], s.last_tick),
        last_command_id = coalesce(p_command_ids[sent], s.last_command_id),
        left_out = s.left_out + p_left_out,
        left_out_at = CASE WHEN p_left_out > 0 THEN clock_timestamp() ELSE s.left_out_at END,
        last_error = CASE refused WHEN 'closed' THEN 'the domain does not accept commands'
            WHEN 'full' THEN 'the domain is full'
            WHEN 'key_full' THEN 'too many commands of its key wait' END
    WHERE s.name = p_name;
    RETURN refused;
END
$$;

-- Sends the command of a schedule; an event says of which, with p_details. Returns what enqueue
-- does, but accepts an id that is there already.
CREATE FUNCTION {schema}.send_scheduled(
    p_schedule {schema}.schedule, p_command_id uuid, p_due timestamptz, p_details json,
    p_operator text DEFAULT NULL, p_reason text DEFAULT NULL,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false,
    OUT refusal text, OUT depth bigint, OUT max_depth integer, OUT warn_depth integer,
    OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    terms {schema}.schedule_columns := p_schedule.terms;
BEGIN
    SELECT e.* INTO refusal, depth, max_depth, warn_depth, oldest_age
    FROM {schema}.enqueue(
        terms.domain, terms.type, p_schedule.data::json, p_command_id, true, terms.priority, NULL,
        p_due, p_command_id, NULL, terms.max_attempts, p_call, p_again, p_key => terms.key) e;
    IF refusal IS NULL THEN
        INSERT INTO {schema}.event (domain, command_id, kind, operator, message, details)
        VALUES (terms.domain, p_command_id, 'SENT_BY_SCHEDULE', p_operator, p_reason, p_details);
    ELSIF refusal IN ('duplicate', 'repeated') THEN
        refusal := NULL;
    END IF;
END
$$;

-- Leaves a schedule whose tick fails for some time, so that the others go on. NULL: another session
-- has locked it, or it is paused.
CREATE FUNCTION {schema}.postpone_schedule(
    p_name text, p_error text, p_seconds double precision
) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
    UPDATE {schema}.schedule s SET
        check_at = clock_timestamp() + make_interval(secs => p_seconds),
        last_error = left(p_error, 2000)
    WHERE s.name = (SELECT l.name FROM {schema}.schedule l
                    WHERE l.name = p_name AND NOT l.paused FOR UPDATE SKIP LOCKED)
    RETURNING true
$$;
