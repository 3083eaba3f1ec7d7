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
-- then, so that nothing of its handler's transaction can settle. Returns where the
-- command was: 'waiting', 'running' (ended only with p_running), 'troubleshooting',
-- 'finished', or NULL if it is unknown. With p_again a first try, whose answer was lost,
-- may have canceled it.
CREATE FUNCTION {schema}.cancel(
    p_domain text, p_command_id uuid, p_reason text, p_running boolean, p_operator text,
    p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was text;
BEGIN
    -- Again while it moves from one table to another between two looks.
    WHILE {schema}.exists_anywhere(p_domain, p_command_id) LOOP
        SELECT CASE WHEN r.lease_until > clock_timestamp() THEN 'running' ELSE 'waiting' END
        INTO was FROM {schema}.ready r
        WHERE r.domain = p_domain AND r.command_id = p_command_id
        FOR UPDATE;
        IF was = 'running' AND NOT p_running THEN
            RETURN was;
        END IF;
        IF {schema}.finish_canceled(p_domain, p_command_id, p_reason, p_operator) THEN
            RETURN coalesce(was, 'waiting');
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
                THEN 'waiting' ELSE 'finished' END;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Moves a command from where it waits to history, with its event and its reply.
CREATE FUNCTION {schema}.finish_canceled(
    p_domain text, p_command_id uuid, p_reason text, p_operator text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH from_ready AS (
        DELETE FROM {schema}.ready
        WHERE domain = p_domain AND command_id = p_command_id
        RETURNING token, claimer, claimed_at, created_at, due_at, correlation_id, priority,
            attempts, losses, max_attempts, type, reply_to, data
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled
        WHERE domain = p_domain AND command_id = p_command_id
        RETURNING token, claimer, claimed_at, created_at, due_at, correlation_id, priority,
            attempts, losses, max_attempts, type, reply_to, data
    )
    INSERT INTO {schema}.finished (
        token, claimer, claimed_at, created_at, due_at, correlation_id, priority, attempts,
        losses, max_attempts, type, reply_to, data,
        domain, command_id, status, error_code, error_message)
    SELECT gone.*, p_domain, p_command_id, 'CANCELED', 'CANCELED', p_reason
    FROM (TABLE from_ready UNION ALL TABLE from_scheduled) gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.event (domain, command_id, kind, operator, code, message)
    VALUES (p_domain, p_command_id, 'CANCELED', p_operator, 'CANCELED', p_reason);
    PERFORM {schema}.send_reply(
        f.reply_to, f.command_id, f.type, f.correlation_id, 'CANCELED',
        json_build_object('code', 'CANCELED', 'message', p_reason, 'details', NULL))
    FROM {schema}.finished f
    WHERE f.domain = p_domain AND f.command_id = p_command_id AND f.reply_to IS NOT NULL;
    RETURN true;
END
$$;

-- Removes everything that waits in a domain, with every trace; what runs stays.
-- Not for production: CommandBus refuses it unless it was made for tests.
CREATE FUNCTION {schema}.purge(p_domain text) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH waiting AS MATERIALIZED (
        SELECT priority, id FROM {schema}.ready
        WHERE domain = p_domain AND (lease_until IS NULL OR lease_until <= clock_timestamp())
        FOR UPDATE SKIP LOCKED
    ), from_ready AS (
        DELETE FROM {schema}.ready r USING waiting w
        WHERE r.domain = p_domain AND r.priority = w.priority AND r.id = w.id
        RETURNING r.command_id
    ), later AS MATERIALIZED (
        SELECT due_at, id FROM {schema}.scheduled WHERE domain = p_domain
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
    SELECT count(*) FROM gone
$$;

CREATE FUNCTION {schema}.set_paused(p_domain text, p_paused boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {schema}.domain (name, paused) VALUES (p_domain, p_paused)
    ON CONFLICT (name) DO UPDATE SET paused = EXCLUDED.paused;
    IF NOT p_paused THEN
        PERFORM {schema}.wake(p_domain);
    END IF;
END
$$;
