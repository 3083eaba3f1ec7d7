-- What operators do to commands in troubleshooting. p_action is RETRY (again from the
-- beginning), CANCEL or COMPLETE (to history, with their reply). They run with the owner's
-- rights, so that an operator's role can change nothing in any other way.

-- Takes the commands of these keys out of troubleshooting, and says of how many. Its
-- event is the operator's signature: what became of a command and who decided it are
-- written together or not at all.
CREATE FUNCTION {schema}.resolve_keys(
    p_action text, p_domains text[], p_command_ids uuid[], p_operator text, p_reason text,
    p_result json
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    resolved bigint;
    failure json := json_build_object('code', 'CANCELED', 'message', p_reason, 'details', NULL);
BEGIN
    PERFORM {schema}.ensure_partition();
    WITH gone AS (
        DELETE FROM {schema}.troubleshooting t
        USING unnest(p_domains, p_command_ids) k (domain, command_id)
        WHERE t.domain = k.domain AND t.command_id = k.command_id
        RETURNING t.token, t.claimer, t.claimed_at, t.created_at, t.due_at, t.failed_at,
            t.command_id, t.correlation_id, t.priority, t.attempts, t.losses, t.max_attempts,
            t.sent_max_attempts, t.domain, t.type, t.reply_to, t.data, t.error_code,
            t.error_message
    ), again AS (
        -- The token stays, because it never goes back; the id is a new one, above all floors.
        INSERT INTO {schema}.ready (
            token, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            max_attempts, domain, type, reply_to, data, error_code, error_message)
        SELECT token, claimed_at, created_at, clock_timestamp(), command_id, correlation_id,
            priority, sent_max_attempts, domain, type, reply_to, data, error_code, error_message
        FROM gone WHERE p_action = 'RETRY' ORDER BY failed_at
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, data, status, result,
            error_code, error_message)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, attempts, losses, max_attempts, domain, type, reply_to, data,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' ELSE 'COMPLETED' END,
            CASE p_action WHEN 'COMPLETE' THEN p_result END,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' END,
            CASE p_action WHEN 'CANCEL' THEN p_reason END
        FROM gone WHERE p_action <> 'RETRY'
    ), events AS (
        INSERT INTO {schema}.event (command_id, domain, kind, operator, message)
        SELECT command_id, domain, 'OPERATOR_' || p_action, p_operator, p_reason FROM gone
    )
    SELECT count(*), count(
        CASE WHEN p_action <> 'RETRY' AND reply_to IS NOT NULL THEN {schema}.send_reply(
            reply_to, command_id, type, correlation_id,
            CASE p_action WHEN 'CANCEL' THEN 'CANCELED' ELSE 'SUCCESS' END,
            CASE p_action WHEN 'CANCEL' THEN failure ELSE p_result END)::text END)
    INTO resolved FROM gone;
    RETURN resolved;
END
$$;

-- One command. Returns the status in which it was found: IN_TROUBLESHOOTING_QUEUE if it
-- was done, NULL if the command is unknown. With p_again it may have been done by a first
-- try, whose answer was lost.
CREATE FUNCTION {schema}.resolve(
    p_action text, p_domain text, p_command_id uuid, p_operator text, p_reason text,
    p_result json, p_again boolean
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done boolean;
    was text;
BEGIN
    -- Again while it moves from one table to another between two looks.
    WHILE {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        done := {schema}.resolve_keys(p_action, ARRAY[p_domain], ARRAY[p_command_id], p_operator,
                                      p_reason, p_result) = 1;
        -- A statement of its own: it sees what the first one waited for.
        done := done OR p_again AND EXISTS (
            SELECT FROM {schema}.event e
            WHERE e.domain = p_domain AND e.command_id = p_command_id
                AND e.kind = 'OPERATOR_' || p_action AND e.operator = p_operator
                AND e.at > clock_timestamp() - interval '5 minutes');
        IF done THEN
            RETURN 'IN_TROUBLESHOOTING_QUEUE';
        END IF;
        SELECT c.status INTO was FROM {schema}.command c
        WHERE c.domain = p_domain AND c.command_id = p_command_id;
        IF was <> 'IN_TROUBLESHOOTING_QUEUE' THEN
            RETURN was;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- A batch of those that meet every condition that is not NULL, the oldest first: at most
-- p_count of them and p_bytes of stored data, but at least one; those that another session has
-- locked are left to it. resolved is how many. The next batch
-- begins at p_since = last and ends at p_until = before, and there is none if last is
-- NULL: so what fails again meanwhile is not taken twice.
CREATE FUNCTION {schema}.resolve_batch(
    p_action text, p_domain text, p_type text, p_error_code text, p_since timestamptz,
    p_until timestamptz, p_count integer, p_bytes bigint, p_operator text, p_reason text,
    p_result json,
    OUT resolved bigint, OUT last timestamptz, OUT before timestamptz
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    domains text[];
    command_ids uuid[];
BEGIN
    before := least(p_until, clock_timestamp());
    WITH picked AS MATERIALIZED (
        SELECT t.domain, t.command_id, t.failed_at, pg_column_size(t.data) AS bytes
        FROM {schema}.troubleshooting t
        WHERE (p_domain IS NULL OR t.domain = p_domain)
            AND (p_type IS NULL OR t.type = p_type)
            AND (p_error_code IS NULL OR t.error_code = p_error_code)
            AND (p_since IS NULL OR t.failed_at >= p_since)
            AND t.failed_at < before
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
        p_action, domains, command_ids, p_operator, p_reason, p_result);
END
$$;
