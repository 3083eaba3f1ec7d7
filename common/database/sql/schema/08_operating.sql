-- Operators' changes of commands that wait or run. These functions, and those for troubleshooting
-- and domains, run with the owner's rights: an operator's role can change nothing without a record.

-- Ends a command that waits or, with p_running, one that runs: its row is gone then, so its
-- handler's transaction cannot settle. Returns 'canceled', or where the command is instead:
-- 'running', 'troubleshooting', 'finished', or NULL if it is unknown. Waits for a locked row.
CREATE FUNCTION {schema}.cancel(
    p_domain text, p_command_id uuid, p_reason {schema}.remark, p_running boolean,
    p_operator {schema}.remark, p_call bigint DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    place text;
BEGIN
    -- Repeated while the command moves from one table to another between two reads.
    WHILE place IS NULL AND {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        IF {schema}.cancel_ids(
            p_domain, ARRAY[p_command_id], p_running, p_reason, p_operator, p_call) > 0
        THEN
            RETURN 'canceled';
        END IF;
        place := {schema}.place_of(p_domain, p_command_id);
        place := CASE WHEN NOT p_running OR place <> 'running' THEN place END;
    END LOOP;
    RETURN CASE WHEN {schema}.was_done(p_domain, p_command_id, p_call)
        THEN 'canceled' ELSE place END;
END
$$;

-- Where a command is instead of waiting: 'running', 'troubleshooting' or 'finished'. NULL: it
-- waits, moves or is unknown.
CREATE FUNCTION {schema}.place_of(p_domain text, p_command_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (
        SELECT CASE
            WHEN c.status = 'IN_TROUBLESHOOTING_QUEUE' THEN 'troubleshooting'
            WHEN c.status NOT IN ('IN_PROGRESS', 'PENDING') THEN 'finished'
            WHEN EXISTS (
                SELECT FROM {schema}.ready r
                WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
                    AND NOT {schema}.is_claimable(r.claimer, r.lease_until))
            THEN 'running' END
        FROM {schema}.command c
        WHERE c.domain = p_domain AND c.command_id = p_command_id
        LIMIT 1);
END
$$;

-- Whether a call was carried out before: it is repeated where its reply was lost.
CREATE FUNCTION {schema}.was_done(p_domain text, p_command_id uuid, p_call bigint)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.event e
        WHERE e.domain = p_domain AND e.command_id = p_command_id AND e.call = p_call)
$$;

-- Deletes those of these commands that wait or, with p_running, run, and returns their rows. A
-- command claimed meanwhile stays. Waits for locked rows, in the order of p_command_ids. Those of
-- limited have no id.
CREATE FUNCTION {schema}.take(p_domain text, p_command_ids uuid[], p_running boolean)
RETURNS SETOF {schema}.ready
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ctids tid[];
BEGIN
    -- Each by its id: a join that was planned on an empty queue would read a whole table.
    ctids := ARRAY(
        SELECT q.ctid FROM unnest(p_command_ids) k (command_id), LATERAL (
            SELECT r.ctid FROM {schema}.ready r
            WHERE r.domain || '' = p_domain AND r.command_id = k.command_id
                AND (p_running OR {schema}.is_claimable(r.claimer, r.lease_until))
            FOR UPDATE) q);
    PERFORM {schema}.leave_turns(ARRAY(
        SELECT ROW(r.domain, r.type, r.key, r.priority)::{schema}.lane_key
        FROM {schema}.ready r WHERE r.ctid = ANY (ctids) AND r.lane_position IS NOT NULL));
    RETURN QUERY
    DELETE FROM {schema}.ready r WHERE r.ctid = ANY (ctids) RETURNING r.*;
    ctids := ARRAY(
        SELECT q.ctid FROM unnest(p_command_ids) k (command_id), LATERAL (
            SELECT s.ctid FROM {schema}.scheduled s
            WHERE s.domain = p_domain AND s.command_id = k.command_id
            FOR UPDATE) q);
    PERFORM {schema}.leave_turns(ARRAY(
        SELECT ROW(s.domain, s.type, s.key, s.priority)::{schema}.lane_key
        FROM {schema}.scheduled s WHERE s.ctid = ANY (ctids) AND s.lane_position IS NOT NULL));
    RETURN QUERY
    DELETE FROM {schema}.scheduled s WHERE s.ctid = ANY (ctids) RETURNING s.*;
    ctids := ARRAY(
        SELECT q.ctid FROM unnest(p_command_ids) k (command_id), LATERAL (
            SELECT l.ctid FROM {schema}.limited l
            WHERE l.domain || '' = p_domain AND l.command_id = k.command_id
            FOR UPDATE) q);
    RETURN QUERY
    DELETE FROM {schema}.limited l WHERE l.ctid = ANY (ctids) RETURNING l.*;
END
$$;

-- Moves commands that the caller has deleted from ready, scheduled or limited to history, each with
-- its event and its reply, and returns their number. Event, reply and command have p_code.
CREATE FUNCTION {schema}.end_canceled(
    p_rows {schema}.ready[], p_code text, p_reason text, p_operator text, p_call bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    canceled bigint;
    replied bigint;
    batch_ids uuid[];
    woken bigint;
    failure json := json_build_object('code', p_code, 'message', p_reason, 'details', NULL);
BEGIN
    IF cardinality(p_rows) = 0 THEN
        RETURN 0;
    END IF;
    PERFORM {schema}.ensure_partition();
    WITH taken AS (
        SELECT * FROM unnest(p_rows)
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, headers, data, status,
            error_code, error_message, batch_id, key, unique_key, expires_at)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, headers, data, 'CANCELED',
            p_code, p_reason, batch_id, key, unique_key, expires_at
        FROM taken
    ), events AS (
        INSERT INTO {schema}.event (call, domain, command_id, kind, operator, code, message)
        SELECT p_call, domain, command_id, p_code, p_operator, p_code, p_reason FROM taken
    )
    SELECT count(*), count(CASE WHEN reply_to IS NOT NULL THEN {schema}.send_reply(
        reply_to, command_id, type, correlation_id, 'CANCELED', failure,
        {schema}.forwarded_headers(headers))::text END),
        array_agg(batch_id) FILTER (WHERE batch_id IS NOT NULL),
        count(CASE WHEN caller IS NOT NULL
                   THEN {schema}.wake_caller(caller, command_id)::text END)
    INTO canceled, replied, batch_ids, woken FROM taken;
    IF batch_ids IS NOT NULL THEN
        PERFORM {schema}.end_in_batches(batch_ids, 'CANCELED');
    END IF;
    RETURN canceled;
END
$$;

-- Ends those of these commands that `take` takes, as CANCELED, and returns their number. p_code
-- says why: CANCELED is an operator's.
CREATE FUNCTION {schema}.cancel_ids(
    p_domain text, p_command_ids uuid[], p_running boolean, p_reason text, p_operator text,
    p_call bigint, p_code text DEFAULT 'CANCELED'
) RETURNS bigint
LANGUAGE sql VOLATILE
AS $$
    SELECT {schema}.end_canceled(
        ARRAY(SELECT t FROM {schema}.take(p_domain, p_command_ids, p_running) t),
        p_code, p_reason, p_operator, p_call)
$$;

-- Gives a waiting command another time or priority, if not NULL, with an event; p_delay is in
-- seconds from now. Returns 'waiting', 'expired' (it is by then), or what cancel returns. The token
-- never goes back, the id is a new one, above all floors, and an ended lease counts its loss, as a
-- claim would have counted it. A command claimed meanwhile stays. One that waits at a limit keeps
-- its position in its lane; one that has not begun loses it if it is delayed. Waits for a locked
-- row.
CREATE FUNCTION {schema}.reschedule(
    p_domain text, p_command_id uuid, p_delay double precision, p_run_at timestamptz,
    p_priority smallint, p_operator text, p_reason text, p_call bigint
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    place text;
    new_time timestamptz;
    -- One time for all inserts: with more, a due time between them would write the row twice.
    present timestamptz;
    was_moved boolean;
BEGIN
    -- A repetition waits for the first try: else `take` would find what that has moved meanwhile.
    PERFORM pg_advisory_xact_lock(p_call) WHERE p_call IS NOT NULL;
    WHILE place IS NULL AND {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        IF {schema}.was_done(p_domain, p_command_id, p_call) THEN
            RETURN 'waiting';
        END IF;
        present := clock_timestamp();
        new_time := coalesce(p_run_at, present + make_interval(secs => p_delay));
        IF EXISTS (SELECT FROM {schema}.command c
                   WHERE c.domain = p_domain AND c.command_id = p_command_id
                       AND c.status = 'PENDING' AND c.started_at IS NULL
                       AND c.expires_at <= new_time)
        THEN
            RETURN 'expired';
        END IF;
        WITH moved AS (
            SELECT m.*, m.token + c.claims AS new_token,
                (m.losses + c.claims)::smallint AS new_losses,
                coalesce(p_priority, m.priority) AS new_priority,
                coalesce(new_time, m.due_at) AS new_due_at
            FROM {schema}.take(p_domain, ARRAY[p_command_id], false) m,
                LATERAL (SELECT (m.lease_until IS NOT NULL)::integer) c (claims)
        ), to_ready AS (
            INSERT INTO {schema}.ready (
                token, claimed_at, created_at, due_at, command_id, correlation_id, priority,
                attempts, losses, max_attempts, domain, type, reply_to, headers, data, error_code,
                error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
            SELECT new_token, claimed_at, created_at, new_due_at, command_id, correlation_id,
                new_priority, attempts, new_losses, max_attempts, domain, type, reply_to, headers,
                data, error_code, error_message, batch_id, caller, key, unique_key, lane_position,
                expires_at
            FROM moved
            WHERE id IS NOT NULL AND (new_due_at IS NULL OR new_due_at <= present)
        ), to_limited AS (
            INSERT INTO {schema}.limited (
                token, claimed_at, created_at, due_at, command_id, correlation_id, priority,
                attempts, losses, max_attempts, domain, type, reply_to, headers, data, error_code,
                error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
            SELECT new_token, claimed_at, created_at, new_due_at, command_id, correlation_id,
                new_priority, attempts, new_losses, max_attempts, domain, type, reply_to, headers,
                data, error_code, error_message, batch_id, caller, key, unique_key, lane_position,
                expires_at
            FROM moved WHERE id IS NULL AND (new_due_at IS NULL OR new_due_at <= present)
        ), to_scheduled AS (
            INSERT INTO {schema}.scheduled (
                token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
                priority, attempts, losses, max_attempts, domain, type, reply_to, headers, data,
                error_code, error_message, batch_id, caller, key, unique_key, lane_position,
                expires_at)
            SELECT new_token, claimer, claimed_at, created_at, new_due_at, command_id,
                correlation_id, new_priority, attempts, new_losses, max_attempts, domain, type,
                reply_to, headers, data, error_code, error_message, batch_id, caller, key,
                unique_key, CASE WHEN claimed_at IS NOT NULL THEN lane_position END, expires_at
            FROM moved WHERE new_due_at > present
        ), events AS (
            INSERT INTO {schema}.event (
                claimer, claimed_at, token, call, attempt, code, command_id, domain, kind,
                operator, message, details)
            SELECT claimer, claimed_at, token, NULL, attempts, 'LEASE_ENDED', command_id, domain,
                'LOST', NULL, 'its lease ended, because its worker or its node was gone', NULL
            FROM moved WHERE lease_until IS NOT NULL
            UNION ALL
            SELECT NULL, NULL, NULL, p_call, NULL, NULL, command_id, domain, 'RESCHEDULED',
                p_operator, p_reason, json_build_object(
                    'due_at', new_due_at, 'priority', new_priority, 'due_at_before', due_at,
                    'priority_before', priority)
            FROM moved
        )
        SELECT count(*) > 0 INTO was_moved FROM moved;
        IF was_moved THEN
            RETURN 'waiting';
        END IF;
        place := {schema}.place_of(p_domain, p_command_id);
    END LOOP;
    RETURN CASE WHEN {schema}.was_done(p_domain, p_command_id, p_call)
        THEN 'waiting' ELSE place END;
END
$$;
