-- Operators' decisions on commands in troubleshooting.

-- Takes commands out of troubleshooting, each with its event, and returns their number. p_action
-- is RETRY (again from the beginning, with p_data instead of their data if it is not NULL), CANCEL
-- or COMPLETE (to history, with their reply). Waits for locked rows.
CREATE FUNCTION {schema}.resolve_keys(
    p_action text, p_domains text[], p_command_ids uuid[], p_operator text, p_reason text,
    p_result json, p_call bigint, p_data json DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    resolved bigint;
    replied bigint;
    batch_ids uuid[];
    lanes {schema}.lane_key[];
    failure json := json_build_object('code', 'CANCELED', 'message', p_reason, 'details', NULL);
BEGIN
    PERFORM {schema}.ensure_partition();
    WITH gone AS (
        DELETE FROM {schema}.troubleshooting t
        USING unnest(p_domains, p_command_ids) k (domain, command_id)
        WHERE t.domain = k.domain AND t.command_id = k.command_id
        RETURNING t.*
    ), again AS (
        -- The token stays, because it never goes back; the id is a new one, above all floors.
        INSERT INTO {schema}.ready (
            token, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            max_attempts, domain, type, reply_to, headers, data, error_code, error_message,
            batch_id, caller, key, unique_key, lane_position, expires_at)
        SELECT token, claimed_at, created_at, clock_timestamp(), command_id, correlation_id,
            priority, sent_max_attempts, domain, type, reply_to, headers, coalesce(p_data, data),
            error_code, error_message, batch_id, caller, key, unique_key, lane_position, expires_at
        FROM gone WHERE p_action = 'RETRY' ORDER BY failed_at
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, headers, data, status, result,
            error_code, error_message, batch_id, key, unique_key, expires_at)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, attempts, losses, max_attempts, domain, type, reply_to, headers, data,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' ELSE 'COMPLETED' END,
            CASE p_action WHEN 'COMPLETE' THEN p_result END,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' END,
            CASE p_action WHEN 'CANCEL' THEN p_reason END, batch_id, key, unique_key, expires_at
        FROM gone WHERE p_action <> 'RETRY'
    ), events AS (
        INSERT INTO {schema}.event (call, command_id, domain, kind, operator, message, details)
        SELECT p_call, command_id, domain, 'OPERATOR_' || p_action, p_operator, p_reason,
            CASE WHEN p_action = 'RETRY' AND p_data IS NOT NULL
                THEN json_build_object('data', p_data, 'data_before', data) END
        FROM gone
    )
    SELECT count(*), count(
        CASE WHEN p_action <> 'RETRY' AND reply_to IS NOT NULL THEN {schema}.send_reply(
            reply_to, command_id, type, correlation_id,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' ELSE 'SUCCESS' END,
            CASE p_action WHEN 'CANCEL' THEN failure ELSE p_result END,
            {schema}.forwarded_headers(headers))::text END),
        array_agg(batch_id) FILTER (WHERE p_action <> 'RETRY' AND batch_id IS NOT NULL),
        array_agg(ROW(domain, type, key, priority)::{schema}.lane_key) FILTER (
            WHERE lane_position IS NOT NULL)
    INTO resolved, replied, batch_ids, lanes FROM gone;
    PERFORM {schema}.leave_turns(lanes);
    IF batch_ids IS NOT NULL THEN
        PERFORM {schema}.end_in_batches(
            batch_ids, CASE p_action WHEN 'CANCEL' THEN 'CANCELED' ELSE 'COMPLETED' END);
    END IF;
    RETURN resolved;
END
$$;

-- Whether the data of a row of troubleshooting is more than that of a command can be, as a message
-- of PGMQ may hold any; see refuse_message.
CREATE FUNCTION {schema}.is_too_large(p_error_code text, p_data json) RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE WHEN p_error_code = 'BRIDGE_REFUSED'
    THEN octet_length(p_data::text) > 16777216 + 1024 ELSE false END;

-- Resolves one command. Returns the status in which it was found: IN_TROUBLESHOOTING_QUEUE if it
-- was resolved, NULL if the command is unknown; or TOO_LARGE if its data keeps it from a retry.
CREATE FUNCTION {schema}.resolve(
    p_action text, p_domain text, p_command_id uuid, p_operator text, p_reason text,
    p_result json, p_call bigint, p_data json DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    found_status text;
BEGIN
    -- Repeated while the command moves from one table to another between two reads.
    WHILE {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        IF {schema}.was_done(p_domain, p_command_id, p_call) THEN
            RETURN 'IN_TROUBLESHOOTING_QUEUE';
        END IF;
        IF p_action = 'RETRY' AND p_data IS NULL AND EXISTS (
            SELECT FROM {schema}.troubleshooting t
            WHERE t.domain = p_domain AND t.command_id = p_command_id
                AND {schema}.is_too_large(t.error_code, t.data))
        THEN
            RETURN 'TOO_LARGE';
        END IF;
        IF {schema}.resolve_keys(p_action, ARRAY[p_domain], ARRAY[p_command_id], p_operator,
                                 p_reason, p_result, p_call, p_data) = 1
        THEN
            RETURN 'IN_TROUBLESHOOTING_QUEUE';
        END IF;
        -- A second statement: its snapshot shows what the first one waited for.
        SELECT c.status INTO found_status FROM {schema}.command c
        WHERE c.domain = p_domain AND c.command_id = p_command_id;
        IF found_status <> 'IN_TROUBLESHOOTING_QUEUE'
            AND NOT {schema}.was_done(p_domain, p_command_id, p_call)
        THEN
            RETURN found_status;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Resolves those that came before p_until and meet every condition that is not NULL, the oldest
-- first, a chunk at a time: at most p_count and p_bytes of stored data, but at least one. Skips
-- locked rows and, for a retry, those whose data is too large. The next chunk has p_since = last;
-- there is none if last is NULL. With p_again it is the second try of its call, and resolves none
-- if the first has resolved some.
CREATE FUNCTION {schema}.resolve_chunk(
    p_action text, p_domain text, p_type text, p_error_code text, p_key text,
    p_since timestamptz, p_until timestamptz, p_count integer, p_bytes bigint,
    p_operator text, p_reason text, p_result json, p_call bigint, p_again boolean,
    OUT resolved bigint, OUT last timestamptz
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    domains text[];
    command_ids uuid[];
BEGIN
    -- The second try waits for the first: else it would take others than those that this locks.
    PERFORM pg_advisory_xact_lock(p_call) WHERE p_call IS NOT NULL;
    IF p_again THEN
        SELECT count(*), coalesce(p_since, 'epoch') INTO resolved, last FROM {schema}.event e
        WHERE e.call = p_call AND (p_domain IS NULL OR e.domain = p_domain);
        IF resolved > 0 THEN
            RETURN;
        END IF;
    END IF;
    WITH picked AS MATERIALIZED (
        SELECT t.domain, t.command_id, t.failed_at, pg_column_size(t.data) AS bytes
        FROM {schema}.troubleshooting t
        WHERE (p_domain IS NULL OR t.domain = p_domain)
            AND (p_type IS NULL OR t.type = p_type)
            AND (p_error_code IS NULL OR t.error_code = p_error_code)
            AND (p_key IS NULL OR t.key = p_key)
            AND (p_since IS NULL OR t.failed_at >= p_since)
            AND t.failed_at < p_until
            AND NOT (p_action = 'RETRY' AND {schema}.is_too_large(t.error_code, t.data))
        ORDER BY t.failed_at
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.domain, p.command_id, p.failed_at, count(*) OVER () AS picked,
            sum(p.bytes) OVER (ORDER BY p.failed_at, p.domain, p.command_id) - p.bytes
                AS bytes_before
        FROM picked p
    )
    SELECT array_agg(s.domain), array_agg(s.command_id),
        CASE WHEN count(*) < max(s.picked) OR max(s.picked) = p_count THEN max(s.failed_at) END
    INTO domains, command_ids, last FROM summed s WHERE s.bytes_before < p_bytes;
    resolved := {schema}.resolve_keys(
        p_action, domains, command_ids, p_operator, p_reason, p_result, p_call);
END
$$;
