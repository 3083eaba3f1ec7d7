-- How the outcomes of claimed commands are stored.

-- Those of a command's headers that its reply gets where no handler says which: the names of
-- headers.py, and that by which a sender of PGMQ knows its message again. Without spaces, so that
-- they are not longer than all are.
CREATE FUNCTION {schema}.forwarded_headers(p_headers json) RETURNS json
LANGUAGE sql IMMUTABLE STRICT
AS $$
    SELECT ('{' || string_agg(to_json(n.name)::text || ':' || (p_headers -> n.name)::text, ',')
            || '}')::json
    FROM unnest(ARRAY['traceparent', 'tracestate', 'tenant', 'pgmq_msg_id']) n (name)
    WHERE p_headers -> n.name IS NOT NULL
$$;

-- Sends a reply: a command of type Reply, to the domain that asked for it, whatever its limits: a
-- full one must not keep commands from settling.
CREATE FUNCTION {schema}.send_reply(
    p_reply_to text, p_command_id uuid, p_type text, p_correlation_id uuid,
    p_outcome text, p_result json, p_headers json
) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.ready (domain, priority, command_id, type, correlation_id, data, headers)
    VALUES (p_reply_to, 5, {schema}.new_id(), 'Reply', p_correlation_id,
            json_build_object('command_id', p_command_id, 'type', p_type,
                              'outcome', p_outcome, 'result', p_result), p_headers)
$$;

-- Settles completed commands without replies: the hot path, called by a leader's round trip.
-- Waits for locked rows. Returns the positions of claims that it did not find. p_results is NULL if
-- all are null, and p_batch_ids if no command is of a batch. (As a part of settle it is a third
-- slower: triggers of inserts fire for no rows, too.)
CREATE FUNCTION {schema}.complete(
    p_ctids tid[], p_ids bigint[], p_tokens bigint[], p_command_ids uuid[], p_claimer bigint,
    p_max_attempts smallint[], p_results json[], p_batch_ids uuid[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ctids tid[] := p_ctids;
    found bigint[];
    settled bigint[] := '{}';
    lost bigint[] := '{}';
    lanes {schema}.lane_key[];
BEGIN
    IF cardinality(p_ids) = 0 THEN
        RETURN '{}';
    END IF;
    FOR pass IN 1..2 LOOP
        WITH gone AS (
            DELETE FROM {schema}.ready r
            USING unnest(ctids, p_ids, p_tokens, p_command_ids, p_max_attempts, p_results)
                WITH ORDINALITY o (ctid, id, token, command_id, max_attempts, result, position)
            WHERE r.ctid = o.ctid AND r.id = o.id AND r.token = o.token
                AND r.claimer = p_claimer AND r.command_id IS NOT DISTINCT FROM o.command_id
            RETURNING r.token, r.claimer, r.claimed_at, r.created_at, r.due_at, r.command_id,
                r.correlation_id, r.priority, r.attempts + 1 AS attempts, r.losses,
                o.max_attempts, r.domain, r.type, r.headers, r.data, r.batch_id, r.key,
                r.unique_key, r.expires_at, r.lane_position, o.result, o.position
        ), history AS (
            INSERT INTO {schema}.finished (
                token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
                priority, attempts, losses, max_attempts, domain, type, headers, data, result,
                batch_id, key, unique_key, expires_at, status)
            SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
                priority, attempts, losses, max_attempts, domain, type, headers, data,
                coalesce(result, 'null'::json), batch_id, key, unique_key, expires_at, 'COMPLETED'
            FROM gone
        )
        SELECT array_agg(position), array_agg(
            ROW(domain, type, key, priority)::{schema}.lane_key) FILTER (
                WHERE lane_position IS NOT NULL)
        INTO found, lanes FROM gone;
        settled := settled || found;
        IF lanes IS NOT NULL THEN
            PERFORM {schema}.leave_turns(lanes);
        END IF;
        EXIT WHEN cardinality(settled) = cardinality(p_ids) OR pass = 2;
        -- Rows that have moved since the claim, as a renewal moves them. Locked, so that they
        -- do not move again.
        ctids := ARRAY(
            SELECT (SELECT r.ctid FROM {schema}.ready r
                    WHERE r.command_id = o.command_id AND r.id = o.id AND r.token = o.token
                        AND r.claimer = p_claimer
                    FOR UPDATE)
            FROM unnest(p_command_ids, p_ids, p_tokens)
                WITH ORDINALITY o (command_id, id, token, position)
            ORDER BY o.position);
    END LOOP;
    IF cardinality(settled) < cardinality(p_ids) THEN
        lost := ARRAY(SELECT n FROM generate_series(1, cardinality(p_ids)::bigint) n
                      WHERE n <> ALL (settled));
    END IF;
    IF p_batch_ids IS NOT NULL THEN
        PERFORM {schema}.count_ended(p_batch_ids, NULL, lost);
    END IF;
    RETURN lost;
END
$$;

-- Settles claims of p_claimer with their outcomes and returns the positions of those that it
-- did not find. Called by workers for all but the hot path, and within a handler's transaction.
-- Waits for locked rows. By its kind a command goes to history (COMPLETED, FAILED), to scheduled
-- for its delay (RETRY) or to troubleshooting (TROUBLE); one with details leaves an event,
-- which is all but COMPLETED, and a RETRY of a command that a breaker has kept from a call.
-- attempts and losses are the totals to store. p_batch_ids is NULL if no command is of a batch.
-- p_reply_headers are those of the replies, {} for none; NULL: those that are passed on. losses
-- NULL: the server ended the session of the execution, which counts a loss unless the server
-- was restarted since the claim.
CREATE FUNCTION {schema}.settle(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_kinds text[], p_attempts smallint[],
    p_losses smallint[], p_max_attempts smallint[], p_results json[], p_delays double precision[],
    p_codes text[], p_messages text[], p_details json[], p_batch_ids uuid[],
    p_reply_headers json[] DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    settled bigint[];
    lost bigint[] := '{}';
    lanes {schema}.lane_key[];
    woken bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.ready r
        USING unnest(p_domains, p_priorities, p_ids, p_tokens, p_command_ids, p_kinds, p_attempts,
                     p_losses, p_max_attempts, p_results, p_delays, p_codes, p_messages, p_details,
                     p_reply_headers)
            WITH ORDINALITY o (domain, priority, id, token, command_id, kind, attempts, losses,
               max_attempts, result, delay, code, message, details, reply_headers, position)
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
            AND r.token = o.token AND r.claimer = p_claimer
            AND r.command_id IS NOT DISTINCT FROM o.command_id
        RETURNING r.*, o.position, o.kind, o.attempts AS attempts_made,
            coalesce(o.losses, r.losses + (pg_postmaster_start_time() < r.claimed_at)::int)
                AS all_losses,
            o.max_attempts AS attempt_limit, o.result, o.delay, o.code, o.message, o.details,
            o.reply_headers
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, headers, status, data, result,
            error_code, error_message, batch_id, key, unique_key, expires_at)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts_made, all_losses, attempt_limit, domain, type, reply_to, headers, kind, data,
            result, code, message, batch_id, key, unique_key, expires_at
        FROM gone WHERE kind IN ('COMPLETED', 'FAILED')
    ), later AS (
        INSERT INTO {schema}.scheduled (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, headers, data, error_code,
            error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
        SELECT token, claimer, claimed_at, created_at,
            clock_timestamp() + make_interval(secs => delay), command_id, correlation_id, priority,
            attempts_made, all_losses, max_attempts, domain, type, reply_to, headers, data, code,
            message, batch_id, caller, key, unique_key, lane_position, expires_at
        FROM gone WHERE kind = 'RETRY'
    ), trouble AS (
        INSERT INTO {schema}.troubleshooting (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, sent_max_attempts, domain, type, reply_to, headers,
            data, error_code, error_message, batch_id, caller, key, unique_key, lane_position,
            expires_at)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts_made, all_losses, attempt_limit, max_attempts, domain, type, reply_to, headers,
            data, code, message, batch_id, caller, key, unique_key, lane_position, expires_at
        FROM gone WHERE kind = 'TROUBLE'
    ), events AS (
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message, details)
        SELECT claimer, claimed_at, token, command_id, attempts_made, domain,
            CASE kind WHEN 'FAILED' THEN 'BUSINESS_RULE_FAILED'
                      WHEN 'TROUBLE' THEN 'MOVED_TO_TROUBLESHOOTING_QUEUE' ELSE 'FAILED' END,
            code, message, details
        FROM gone WHERE details IS NOT NULL
    ), replies AS (
        INSERT INTO {schema}.ready (
            domain, priority, command_id, type, correlation_id, data, headers)
        SELECT reply_to, 5, {schema}.new_id(), 'Reply', correlation_id, json_build_object(
            'command_id', command_id, 'type', type,
            'outcome', CASE kind WHEN 'COMPLETED' THEN 'SUCCESS' ELSE 'FAILED' END,
            'result', CASE kind WHEN 'COMPLETED' THEN result ELSE json_build_object(
                'code', code, 'message', message, 'details', details -> 'details') END),
            CASE WHEN reply_headers IS NULL THEN {schema}.forwarded_headers(headers)
                 WHEN reply_headers::text <> '{}' THEN reply_headers END
        FROM gone WHERE reply_to IS NOT NULL AND kind IN ('COMPLETED', 'FAILED')
    )
    SELECT array_agg(position), count(
        CASE WHEN caller IS NOT NULL AND kind <> 'RETRY'
             THEN {schema}.wake_caller(caller, command_id)::text END),
        array_agg(ROW(domain, type, key, priority)::{schema}.lane_key) FILTER (
            WHERE lane_position IS NOT NULL)
    INTO settled, woken, lanes FROM gone;
    IF lanes IS NOT NULL THEN
        PERFORM {schema}.leave_turns(lanes);
    END IF;
    IF cardinality(settled) IS DISTINCT FROM cardinality(p_ids) THEN
        lost := ARRAY(SELECT n::bigint FROM generate_series(1, cardinality(p_ids)) n
                      WHERE settled IS NULL OR n <> ALL (settled));
    END IF;
    IF p_batch_ids IS NOT NULL THEN
        PERFORM {schema}.count_ended(p_batch_ids, p_kinds, lost);
    END IF;
    RETURN lost;
END
$$;

-- Moves a row of p_table (ready, scheduled or limited, where p_id is the lane_position) that can be
-- neither claimed nor settled to troubleshooting. False if it was claimed, released, settled or
-- moved since. Writes no value of the caller but p_code and p_message, as another one may be why a
-- settlement was rejected. If troubleshooting has a command of the same id, the row gets a new one.
-- Waits for a locked row.
CREATE FUNCTION {schema}.set_aside(
    p_table text, p_domain text, p_priority smallint, p_id bigint, p_token bigint,
    p_command_id uuid, p_claimer bigint, p_code text, p_message text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    taken boolean := EXISTS (
        SELECT FROM {schema}.troubleshooting t
        WHERE t.domain = p_domain AND t.command_id = p_command_id);
    new_command_id uuid := CASE WHEN taken THEN {schema}.new_id() ELSE p_command_id END;
    why text := CASE WHEN taken THEN 'its id ' || p_command_id || ' is in troubleshooting already: '
        ELSE '' END || p_message;
    event_attempt smallint;
    event_claimed_at timestamptz;
    waiting_caller bigint;
    lanes {schema}.lane_key[];
BEGIN
    WITH from_ready AS (
        DELETE FROM {schema}.ready r
        WHERE p_table = 'ready' AND r.domain = p_domain AND r.priority = p_priority
            AND r.id = p_id AND r.token = p_token AND r.command_id = p_command_id
            AND r.claimer IS NOT DISTINCT FROM p_claimer
        RETURNING r.*
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled s
        WHERE p_table = 'scheduled' AND s.domain = p_domain AND s.id = p_id
            AND s.token = p_token AND s.command_id = p_command_id
        RETURNING s.*
    ), from_limited AS (
        DELETE FROM {schema}.limited l
        WHERE p_table = 'limited' AND l.domain = p_domain AND l.lane_position = p_id
            AND l.token = p_token AND l.command_id = p_command_id
        RETURNING l.*
    )
    INSERT INTO {schema}.troubleshooting (
        token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
        attempts, losses, max_attempts, sent_max_attempts, domain, type, reply_to, headers, data,
        error_code, error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
    SELECT token, p_claimer, claimed_at, created_at, due_at, new_command_id, correlation_id,
        priority, attempts, losses, max_attempts, max_attempts, domain, type, reply_to, headers,
        data, p_code, why, batch_id, caller, key, unique_key, lane_position, expires_at
    FROM (TABLE from_ready UNION ALL TABLE from_scheduled UNION ALL TABLE from_limited) gone
    RETURNING attempts, claimed_at, caller, CASE WHEN lane_position IS NOT NULL
        THEN ARRAY[ROW(domain, type, key, priority)::{schema}.lane_key] END
    INTO event_attempt, event_claimed_at, waiting_caller, lanes;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.leave_turns(lanes);
    BEGIN
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message, details)
        SELECT p_claimer, event_claimed_at, p_token, c, event_attempt, p_domain,
            'MOVED_TO_TROUBLESHOOTING_QUEUE', p_code, why,
            json_build_object('reason', p_code)
        FROM (SELECT DISTINCT unnest(ARRAY[p_command_id, new_command_id])) ids (c);
    EXCEPTION WHEN OTHERS THEN
        NULL;  -- Moving the row matters more than its event.
    END;
    IF waiting_caller IS NOT NULL THEN
        PERFORM {schema}.wake_caller(waiting_caller, p_command_id);
    END IF;
    RETURN true;
END
$$;
