-- Circuit breakers: when calls to another system are let through. Registries declare them, and
-- operators set terms of them, which win. Workers report how calls have ended, and ask for places
-- for probes.
--
--   CLOSED ----- report_calls: as many failures as its terms say ----> OPEN
--   OPEN ------- note_probes, take_probe: the first probe -----------> HALF_OPEN
--   HALF_OPEN -- report_calls: a probe has succeeded ----------------> CLOSED
--   HALF_OPEN -- report_calls: a probe has ended in another way -----> OPEN
--
-- Nothing here is read or written by claims and settlements.

-- What registries declare.
CREATE TABLE {schema}.breaker_declared (
    name {schema}.name,
    app text COLLATE "C",
    failures integer NOT NULL CHECK (failures BETWEEN 1 AND 1000),
    window_seconds double precision NOT NULL CHECK (window_seconds > 0),
    cooldown_seconds double precision NOT NULL CHECK (cooldown_seconds > 0),
    probes integer NOT NULL CHECK (probes BETWEEN 1 AND 1000),
    -- Names of exceptions.
    counts text[] NOT NULL,
    -- The types that are bound to it, as 'domain type'.
    covers text[] COLLATE "C" NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, app)
);

-- What operators have set; of a term that is NULL the declared value holds.
CREATE TABLE {schema}.breaker_set (
    name {schema}.name PRIMARY KEY,
    failures integer CHECK (failures BETWEEN 1 AND 1000),
    window_seconds double precision CHECK (window_seconds > 0),
    cooldown_seconds double precision CHECK (cooldown_seconds > 0),
    probes integer CHECK (probes BETWEEN 1 AND 1000),
    operator text,
    reason text,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The terms in force and the state of each breaker that is declared.
CREATE TABLE {schema}.breaker (
    name {schema}.name PRIMARY KEY,
    failures integer NOT NULL,
    window_seconds double precision NOT NULL,
    cooldown_seconds double precision NOT NULL,
    probes integer NOT NULL,
    covers text[] COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'CLOSED'
        CHECK (state IN ('CLOSED', 'OPEN', 'HALF_OPEN')),
    -- Failures on record while it is CLOSED, in order: those within the window and after the latest
    -- success.
    failed_at timestamptz[] NOT NULL DEFAULT '{}',
    succeeded_at timestamptz NOT NULL DEFAULT '-infinity',
    -- From when on probes are let through; NULL while it is CLOSED, and if an operator keeps it
    -- open.
    retry_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Since when it is not CLOSED, through failed probes; NULL while it is.
    opened_at timestamptz
) WITH (fillfactor = 50);

-- Calls that are let through while their breaker is HALF_OPEN, and the claims that make them. A row
-- holds a place until its end is reported, or its claim is lost; one whose command is settled does
-- until held_until.
CREATE TABLE {schema}.breaker_probe (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    breaker {schema}.name NOT NULL,
    claimer bigint NOT NULL,
    domain {schema}.name NOT NULL,
    priority smallint NOT NULL,
    ready_id bigint NOT NULL,
    token bigint NOT NULL,
    held_until timestamptz NOT NULL
);

-- Changes of breakers: by operators, whose reason is the message, and by calls.
CREATE TABLE {schema}.breaker_event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- As in event.
    call bigint,
    breaker text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    operator text,
    message text,
    details json,
    PRIMARY KEY (breaker, id)
);

-- Leaves an event; the latest 1000 of a breaker are kept.
CREATE FUNCTION {schema}.note_breaker(
    p_name text, p_kind text, p_details json DEFAULT NULL, p_operator text DEFAULT NULL,
    p_reason text DEFAULT NULL, p_call bigint DEFAULT NULL
) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.breaker_event (call, breaker, kind, operator, message, details)
    VALUES (p_call, p_name, p_kind, p_operator, p_reason, p_details);
    DELETE FROM {schema}.breaker_event e
    WHERE e.breaker = p_name AND e.id <= (
        SELECT o.id FROM {schema}.breaker_event o
        WHERE o.breaker = p_name ORDER BY o.id DESC OFFSET 1000 LIMIT 1);
$$;

-- Lets every process read the states again; with p_wakes, commands of the breaker's types may be
-- claimable now. The order counts: a worker that is woken must know of the change.
CREATE FUNCTION {schema}.announce_breaker(p_breaker {schema}.breaker, p_wakes boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.notify('{channel}_breaker', p_breaker.name);
    IF p_wakes THEN
        PERFORM {schema}.wake(d)
        FROM (SELECT DISTINCT split_part(c, ' ', 1) FROM unnest(p_breaker.covers) c) w (d);
    END IF;
END
$$;

-- Opens a breaker whose row is locked, for its cooldown or, by an operator, until one closes it.
CREATE FUNCTION {schema}.open_breaker(p_breaker {schema}.breaker, p_by_operator boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE {schema}.breaker b SET
        state = 'OPEN', failed_at = '{}', changed_at = clock_timestamp(),
        opened_at = coalesce(b.opened_at, clock_timestamp()),
        retry_at = CASE WHEN NOT p_by_operator
            THEN clock_timestamp() + make_interval(secs => b.cooldown_seconds) END
    WHERE b.name = p_breaker.name;
    PERFORM {schema}.announce_breaker(p_breaker, false);
END
$$;

-- Closes a breaker whose row is locked; probes that still run end as other calls do.
CREATE FUNCTION {schema}.close_breaker(p_breaker {schema}.breaker) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM {schema}.breaker_probe p WHERE p.breaker = p_breaker.name;
    UPDATE {schema}.breaker b SET
        state = 'CLOSED', failed_at = '{}', succeeded_at = clock_timestamp(), retry_at = NULL,
        changed_at = clock_timestamp(), opened_at = NULL
    WHERE b.name = p_breaker.name;
    PERFORM {schema}.announce_breaker(p_breaker, true), {schema}.end_deferrals(p_breaker.name);
END
$$;

-- Puts on record how calls of a CLOSED breaker, whose row is locked, have ended; opens it if they
-- are too many failures. Ages are in seconds: that of the latest success, and those of failures.
CREATE FUNCTION {schema}.record_calls(
    p_breaker {schema}.breaker, p_succeeded_ago double precision, p_failed_ago double precision[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    succeeded timestamptz := greatest(
        p_breaker.succeeded_at, present - make_interval(secs => p_succeeded_ago));
    failed timestamptz[] := ARRAY(
        SELECT f FROM (
            SELECT unnest(p_breaker.failed_at)
            UNION ALL
            SELECT present - make_interval(secs => a) FROM unnest(p_failed_ago) a
        ) r (f)
        WHERE f > succeeded AND f > present - make_interval(secs => p_breaker.window_seconds)
        ORDER BY f);
BEGIN
    IF cardinality(failed) >= p_breaker.failures THEN
        PERFORM {schema}.open_breaker(p_breaker, false),
            {schema}.note_breaker(p_breaker.name, 'OPENED', json_build_object(
                'failures', cardinality(failed),
                'first_at', failed[1], 'for_seconds', p_breaker.cooldown_seconds));
        RETURN;
    END IF;
    UPDATE {schema}.breaker b SET failed_at = failed, succeeded_at = succeeded
    WHERE b.name = p_breaker.name;
    -- Workers report successes only while a failure is on record.
    IF (cardinality(failed) = 0) <> (cardinality(p_breaker.failed_at) = 0) THEN
        PERFORM {schema}.announce_breaker(p_breaker, false);
    END IF;
END
$$;

-- Records how calls have ended; called by workers, after some, with an array of objects: the name
-- of a breaker, succeeded_ago and failed_ago as record_calls takes them, and the ends of probes:
-- the id of each and its verdict. Returns the names of breakers that other sessions have locked.
CREATE FUNCTION {schema}.report_calls(p_reports json) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    report record;
    found_breaker {schema}.breaker;
    ends text[];
    locked text[] := '{}';
BEGIN
    FOR report IN
        SELECT r.* FROM json_to_recordset(p_reports) r (
            name text, succeeded_ago double precision, failed_ago double precision[],
            probes bigint[], verdicts text[])
        ORDER BY r.name
    LOOP
        SELECT b.* INTO found_breaker FROM {schema}.breaker b
        WHERE b.name = report.name FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            locked := locked || report.name;
            CONTINUE;
        END IF;
        WITH ended AS (
            DELETE FROM {schema}.breaker_probe p
            USING unnest(report.probes, report.verdicts) e (id, verdict)
            WHERE p.id = e.id AND p.breaker = report.name
            RETURNING e.verdict)
        SELECT coalesce(array_agg(verdict), '{}') INTO ends FROM ended;
        CASE
            WHEN found_breaker.state = 'CLOSED' THEN
                PERFORM {schema}.record_calls(
                    found_breaker, report.succeeded_ago, report.failed_ago);
            WHEN found_breaker.state = 'HALF_OPEN' AND 'SUCCESS' = ANY (ends) THEN
                PERFORM {schema}.close_breaker(found_breaker),
                    {schema}.note_breaker(report.name, 'CLOSED');
            WHEN found_breaker.state = 'HALF_OPEN' AND ends && ARRAY['FAILURE', 'OTHER'] THEN
                PERFORM {schema}.open_breaker(found_breaker, false),
                    {schema}.note_breaker(report.name, 'OPENED', json_build_object(
                        'probe', CASE WHEN 'FAILURE' = ANY (ends) THEN 'failed'
                                      ELSE 'ended with an error that does not count' END,
                        'for_seconds', found_breaker.cooldown_seconds));
            WHEN cardinality(ends) > 0 AND found_breaker.state = 'HALF_OPEN' THEN
                PERFORM {schema}.announce_breaker(found_breaker, true);
            ELSE NULL;
        END CASE;
    END LOOP;
    -- Those that are not declared any longer are not locked.
    RETURN ARRAY(SELECT b.name::text FROM {schema}.breaker b WHERE b.name = ANY (locked));
END
$$;
