-- What operators and producers do to commands that nobody runs.

-- A reply is a command of type Reply in the domain that asked for it. It is taken
-- whatever that domain's limits are: a full reply domain must not keep finished
-- commands from settling.
CREATE FUNCTION {schema}.send_reply(
    p_reply_to text, p_command_id uuid, p_type text, p_correlation_id uuid,
    p_outcome text, p_result json
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO {schema}.ready (domain, priority, command_id, type, correlation_id, data)
    VALUES (p_reply_to, 5, {schema}.new_id(), 'Reply', p_correlation_id,
            json_build_object('command_id', p_command_id, 'type', p_type,
                              'outcome', p_outcome, 'result', p_result))
$$;

-- Ends a command that waits or, with p_running, one that runs: its row is gone
-- then, so that nothing of its handler's transaction can settle. Returns 'canceled', or
-- where the command is instead: 'running', 'troubleshooting', 'finished', or NULL if it is
-- unknown. With p_again a first try, whose answer was lost, may have canceled it.
CREATE FUNCTION {schema}.cancel(
    p_domain text, p_command_id uuid, p_reason {schema}.remark, p_running boolean,
    p_operator {schema}.remark, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Again while it moves from one table to another between two looks.
    WHILE {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        IF {schema}.cancel_ids(
            p_domain, ARRAY[p_command_id], p_running, p_reason, p_operator) > 0
        THEN
            RETURN 'canceled';
        END IF;
        IF NOT p_running AND EXISTS (SELECT FROM {schema}.ready r
                WHERE r.domain = p_domain AND r.command_id = p_command_id
                    AND r.lease_until IS NOT NULL
                    AND NOT {schema}.lease_is_over(r.claimer, r.lease_until)) THEN
            RETURN 'running';
        END IF;
        IF EXISTS (SELECT FROM {schema}.troubleshooting t
                   WHERE t.domain = p_domain AND t.command_id = p_command_id) THEN
            RETURN 'troubleshooting';
        END IF;
        IF EXISTS (SELECT FROM {schema}.finished f
                   WHERE f.domain = p_domain AND f.command_id = p_command_id) THEN
            RETURN CASE WHEN p_again AND EXISTS (
                SELECT FROM {schema}.event e
                WHERE e.domain = p_domain AND e.command_id = p_command_id
                    AND e.kind = 'CANCELED' AND e.operator IS NOT DISTINCT FROM p_operator
                    AND e.message IS NOT DISTINCT FROM p_reason
                    AND e.at > clock_timestamp() - interval '5 minutes')
                THEN 'canceled' ELSE 'finished' END;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Moves those of these commands that wait or, with p_running, that run, to history, each
-- with its event and its reply; says how many. The lease is tested by the statement that
-- deletes, so that what is claimed meanwhile stays.
CREATE FUNCTION {schema}.cancel_ids(
    p_domain text, p_command_ids uuid[], p_running boolean, p_reason text, p_operator text
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    canceled bigint;
    failure json := json_build_object('code', 'CANCELED', 'message', p_reason, 'details', NULL);
BEGIN
    PERFORM {schema}.ensure_partition();
    WITH from_ready AS (
        DELETE FROM {schema}.ready r USING unnest(p_command_ids) k (command_id)
        -- Not by an index that is led by the domain, as a plan made on an empty queue would.
        WHERE r.domain || '' = p_domain AND r.command_id = k.command_id
            AND (p_running OR r.lease_until IS NULL
                OR {schema}.lease_is_over(r.claimer, r.lease_until))
        RETURNING r.token, r.claimer, r.claimed_at, r.created_at, r.due_at, r.command_id,
            r.correlation_id, r.priority, r.attempts, r.losses, r.max_attempts, r.type,
            r.reply_to, r.data
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled s USING unnest(p_command_ids) k (command_id)
        WHERE s.domain = p_domain AND s.command_id = k.command_id
        RETURNING s.token, s.claimer, s.claimed_at, s.created_at, s.due_at, s.command_id,
            s.correlation_id, s.priority, s.attempts, s.losses, s.max_attempts, s.type,
            s.reply_to, s.data
    ), gone AS (
        TABLE from_ready UNION ALL TABLE from_scheduled
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, type, reply_to, data,
            domain, status, error_code, error_message)
        SELECT gone.*, p_domain, 'CANCELED', 'CANCELED', p_reason FROM gone
    ), events AS (
        INSERT INTO {schema}.event (domain, command_id, kind, operator, code, message)
        SELECT p_domain, command_id, 'CANCELED', p_operator, 'CANCELED', p_reason FROM gone
    )
    SELECT count(*), count(CASE WHEN reply_to IS NOT NULL THEN {schema}.send_reply(
        reply_to, command_id, type, correlation_id, 'CANCELED', failure)::text END)
    INTO canceled FROM gone;
    RETURN canceled;
END
$$;

-- Cancels a batch of what is scheduled and meets every condition that is not NULL: the
-- commands after p_command_id, at most p_count of them and p_bytes of stored data, but at
-- least one. Rows that another session has locked are left to it. The next batch is sent
-- before `before` and begins after command_id; NULL says that nothing is left.
CREATE FUNCTION {schema}.cancel_scheduled(
    p_domain text, p_type text, p_since timestamptz, p_until timestamptz,
    p_command_id uuid, p_count integer, p_bytes bigint, p_operator text, p_reason text,
    OUT canceled bigint, OUT before timestamptz, OUT command_id uuid
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    before := least(p_until, clock_timestamp());
    WITH picked AS MATERIALIZED (
        SELECT s.command_id, pg_column_size(s.data) AS bytes
        FROM {schema}.scheduled s
        WHERE s.domain = p_domain AND (p_command_id IS NULL OR s.command_id > p_command_id)
            AND (p_type IS NULL OR s.type = p_type)
            AND (p_since IS NULL OR s.created_at >= p_since)
            AND s.created_at < before
        ORDER BY s.domain, s.command_id
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.command_id, sum(p.bytes) OVER (ORDER BY p.command_id) - p.bytes AS bytes_before
        FROM picked p
    )
    SELECT array_agg(s.command_id ORDER BY s.command_id) INTO command_ids
    FROM summed s WHERE s.bytes_before < p_bytes;
    command_id := command_ids[cardinality(command_ids)];
    canceled := {schema}.cancel_ids(p_domain, command_ids, false, p_reason, p_operator);
END
$$;

-- The same for what waits in ready, in the order of claims: after (p_priority, p_id). Called
-- after cancel_scheduled has come to its end, it finds what was promoted meanwhile.
CREATE FUNCTION {schema}.cancel_ready(
    p_domain text, p_type text, p_since timestamptz, p_until timestamptz,
    p_priority smallint, p_id bigint, p_count integer, p_bytes bigint,
    p_operator text, p_reason text,
    OUT canceled bigint, OUT priority smallint, OUT id bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT r.priority, r.id, r.command_id, pg_column_size(r.data) AS bytes
        FROM {schema}.ready r
        WHERE r.domain = p_domain AND (r.priority, r.id) > (p_priority, p_id)
            AND (p_type IS NULL OR r.type = p_type)
            AND (p_since IS NULL OR r.created_at >= p_since)
            AND r.created_at < p_until
            AND (r.lease_until IS NULL OR {schema}.lease_is_over(r.claimer, r.lease_until))
        ORDER BY r.domain, r.priority, r.id
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.priority, p.id, p.command_id,
            sum(p.bytes) OVER (ORDER BY p.priority, p.id) - p.bytes AS bytes_before
        FROM picked p
    )
    SELECT array_agg(s.command_id), (array_agg(s.priority ORDER BY s.priority DESC))[1],
        (array_agg(s.id ORDER BY s.priority DESC, s.id DESC))[1]
    INTO command_ids, priority, id FROM summed s WHERE s.bytes_before < p_bytes;
    canceled := {schema}.cancel_ids(p_domain, command_ids, false, p_reason, p_operator);
END
$$;

-- Gives a command that waits another time or priority, where they are not NULL; p_delay is
-- in seconds from now. Returns 'waiting' if it was done, or where the command is instead:
-- 'running', 'troubleshooting', 'finished', or NULL if it is unknown. With p_again a first
-- try, whose answer was lost, may have done it.
CREATE FUNCTION {schema}.reschedule(
    p_domain text, p_command_id uuid, p_delay double precision, p_run_at timestamptz,
    p_priority smallint, p_operator text, p_reason text, p_again boolean
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_in text;
BEGIN
    -- Repeated while the row moves from one table to another between two of these statements.
    WHILE {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        IF {schema}.move_waiting(p_domain, p_command_id,
                        coalesce(p_run_at, clock_timestamp() + make_interval(secs => p_delay)),
                        p_priority, p_operator, p_reason) THEN
            RETURN 'waiting';
        END IF;
        SELECT CASE
                   WHEN c.status = 'IN_TROUBLESHOOTING_QUEUE' THEN 'troubleshooting'
                   WHEN c.status NOT IN ('IN_PROGRESS', 'PENDING') THEN 'finished'
                   WHEN EXISTS (
                       SELECT FROM {schema}.ready r
                       WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
                           AND r.lease_until IS NOT NULL
                           AND NOT {schema}.lease_is_over(r.claimer, r.lease_until))
                   THEN 'running' END
        INTO found_in FROM {schema}.command c
        WHERE c.domain = p_domain AND c.command_id = p_command_id;
        IF found_in IS NOT NULL THEN
            RETURN CASE WHEN p_again AND EXISTS (
                SELECT FROM {schema}.event e
                WHERE e.domain = p_domain AND e.command_id = p_command_id
                    AND e.kind = 'RESCHEDULED' AND e.operator IS NOT DISTINCT FROM p_operator
                    AND e.message IS NOT DISTINCT FROM p_reason
                    AND e.at > clock_timestamp() - interval '5 minutes')
                THEN 'waiting' ELSE found_in END;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Moves a command that waits to where its time and priority put it, with an event. The
-- token never goes back, the id is a new one, above all floors, and a lease that ended
-- without an outcome counts its loss, as a claim would have counted it. The lease is tested
-- by the statement that deletes, so that what is claimed meanwhile stays.
CREATE FUNCTION {schema}.move_waiting(
    p_domain text, p_command_id uuid, p_due_at timestamptz, p_priority smallint,
    p_operator text, p_reason text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    -- One time for both inserts: between two the due time may come, and the row is in both tables.
    present timestamptz := clock_timestamp();
BEGIN
    WITH from_ready AS (
        DELETE FROM {schema}.ready
        WHERE domain || '' = p_domain AND command_id = p_command_id
            AND (lease_until IS NULL OR {schema}.lease_is_over(claimer, lease_until))
        RETURNING token + (claimer IS NOT NULL)::integer AS token, claimer, claimed_at, created_at,
            due_at, correlation_id, priority, attempts,
            (losses + (claimer IS NOT NULL)::integer)::smallint AS losses, max_attempts, type,
            reply_to, data, error_code, error_message
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled
        WHERE domain = p_domain AND command_id = p_command_id
        RETURNING token, claimer, claimed_at, created_at, due_at, correlation_id, priority,
            attempts, losses, max_attempts, type, reply_to, data, error_code, error_message
    ), moved AS (
        SELECT m.*, coalesce(p_priority, m.priority) AS new_priority,
            coalesce(p_due_at, m.due_at) AS new_due_at
        FROM (TABLE from_ready UNION ALL TABLE from_scheduled) m
    ), to_ready AS (
        INSERT INTO {schema}.ready (
            token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,
            losses, max_attempts, domain, type, reply_to, data, error_code, error_message)
        SELECT token, claimed_at, created_at, new_due_at, p_command_id, correlation_id,
            new_priority, attempts, losses, max_attempts, p_domain, type, reply_to, data,
            error_code, error_message
        FROM moved WHERE new_due_at IS NULL OR new_due_at <= present
    ), to_scheduled AS (
        INSERT INTO {schema}.scheduled (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, data, error_code,
            error_message)
        SELECT token, claimer, claimed_at, created_at, new_due_at, p_command_id, correlation_id,
            new_priority, attempts, losses, max_attempts, p_domain, type, reply_to, data,
            error_code, error_message
        FROM moved WHERE new_due_at > present
    )
    INSERT INTO {schema}.event (domain, command_id, kind, operator, message, details)
    SELECT p_domain, p_command_id, 'RESCHEDULED', p_operator, p_reason,
        json_build_object('due_at', new_due_at, 'priority', new_priority,
                          'due_at_before', due_at, 'priority_before', priority)
    FROM moved;
    RETURN FOUND;
END
$$;

-- Removes what waits in a domain, with every trace, up to p_count commands of each table;
-- what runs stays. Not for production: CommandBus refuses it unless it was made for tests.
CREATE FUNCTION {schema}.purge(p_domain text, p_count integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    removed bigint;
BEGIN
    WITH waiting AS MATERIALIZED (
        SELECT priority, id FROM {schema}.ready
        WHERE domain = p_domain
            AND (lease_until IS NULL OR {schema}.lease_is_over(claimer, lease_until))
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), from_ready AS (
        DELETE FROM {schema}.ready r USING waiting w
        WHERE r.domain = p_domain AND r.priority = w.priority AND r.id = w.id
        RETURNING r.command_id
    ), later AS MATERIALIZED (
        SELECT due_at, id FROM {schema}.scheduled WHERE domain = p_domain
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled s USING later l
        WHERE s.due_at = l.due_at AND s.id = l.id
        RETURNING s.command_id
    ), gone AS (
        SELECT command_id FROM from_ready UNION ALL SELECT command_id FROM from_scheduled
    ), identities AS (
        DELETE FROM {schema}.identity i USING gone g
        WHERE i.domain = p_domain AND i.command_id = g.command_id
    ), events AS (
        DELETE FROM {schema}.event e USING gone g
        WHERE e.domain = p_domain AND e.command_id = g.command_id
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END
$$;
