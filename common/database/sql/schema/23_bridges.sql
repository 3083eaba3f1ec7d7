-- Bridges: stewards move the messages of a queue of PGMQ into commands, and commands into messages.
-- A move is one statement that locks the row of its bridge. So it happens as a whole or not at all,
-- and no two stewards move messages of the same queue at once. Of messages that fail, each half is
-- moved by itself, down to the one that cannot be moved.
--
-- All but operators' changes run with the rights of the steward's role, as the tables of PGMQ have
-- owners of their own.

-- Whether an error may be that of a message, and not of the queue, the session or the server; see
-- rejections.py. Whatever is wrong with a statement is not: PGMQ may be of another version.
CREATE FUNCTION {schema}.is_error_of_message(p_sqlstate text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN p_sqlstate !~ '^(08|0A|25|26|3F|40|42|53|55P03|57|58)';

-- Checks what is deferred until the end of the transaction, where it would stop all that is moved.
-- The trigger of turn remains there.
CREATE FUNCTION {schema}.check_deferred() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    SET CONSTRAINTS ALL IMMEDIATE;
    SET CONSTRAINTS {schema}.wake DEFERRED;
END
$$;

-- Why p_role cannot move messages of a queue: PGMQ is not there ('no_pgmq') or has no headers yet
-- ('old_pgmq'), there is no such queue ('no_queue'), or the role lacks a right ('no_right') or,
-- where a trigger notifies of messages, one that this needs ('no_notify_right'). NULL: it can.
CREATE FUNCTION {schema}.queue_problem(p_queue text, p_direction text, p_role text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    home oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'pgmq');
    queue oid := (
        SELECT c.oid FROM pg_class c
        WHERE c.relnamespace = home AND c.relname = ('q_' || p_queue)::name
            AND c.relkind IN ('r', 'p'));
BEGIN
    RETURN CASE
        WHEN NOT EXISTS (
            SELECT FROM pg_proc f
            WHERE f.pronamespace = home AND f.proname = 'send_batch'::name) THEN 'no_pgmq'
        WHEN queue IS NULL THEN 'no_queue'
        WHEN NOT EXISTS (
            SELECT FROM pg_proc f
            WHERE f.pronamespace = home AND f.proname = 'send_batch'::name
                AND oidvectortypes(f.proargtypes) = 'text, jsonb[], jsonb[]')
            OR NOT EXISTS (
                SELECT FROM pg_attribute a
                WHERE a.attrelid = queue AND a.attname = 'headers'::name) THEN 'old_pgmq'
        WHEN NOT has_schema_privilege(p_role::name, home, 'USAGE') OR EXISTS (
            SELECT FROM unnest(CASE p_direction WHEN 'in' THEN '{SELECT,UPDATE,DELETE}'::text[]
                               ELSE '{SELECT,INSERT}' END) r (privilege)
            WHERE NOT has_table_privilege(p_role::name, queue, r.privilege)) THEN 'no_right'
        WHEN p_direction = 'out' AND EXISTS (
            SELECT FROM pg_trigger t, pg_class c, unnest('{SELECT,UPDATE}'::text[]) r (privilege)
            WHERE t.tgrelid = queue AND t.tgname = 'trigger_notify_queue_insert_listeners'::name
                AND c.relnamespace = home AND c.relname = 'notify_insert_throttle'::name
                AND NOT has_table_privilege(p_role::name, c.oid, r.privilege)
            ) THEN 'no_notify_right'
    END;
END
$$;

-- Locks a bridge until the transaction ends. NULL: there is none of this name and direction, or
-- another session has locked it.
CREATE FUNCTION {schema}.lock_bridge(p_name text, p_direction text DEFAULT NULL)
RETURNS {schema}.bridge
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    bridge {schema}.bridge;
BEGIN
    SELECT b.* INTO bridge FROM {schema}.bridge b
    WHERE b.name = p_name AND b.direction = coalesce(p_direction, b.direction)
    FOR NO KEY UPDATE SKIP LOCKED;
    RETURN bridge;
END
$$;

-- Counts what a bridge has moved, and notes why it moves nothing more. Writes nothing new as
-- nothing.
CREATE FUNCTION {schema}.count_moved(
    p_bridge {schema}.bridge, p_moved integer, p_refused integer, p_problem text
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_moved + p_refused > 0 OR p_bridge.error IS DISTINCT FROM p_problem THEN
        UPDATE {schema}.bridge b SET
            moved = b.moved + p_moved, refused = b.refused + p_refused,
            moved_at = CASE WHEN p_moved > 0 THEN clock_timestamp() ELSE b.moved_at END,
            error = p_problem,
            failed_at = CASE WHEN p_problem IS NULL THEN NULL WHEN p_problem = b.error
                             THEN b.failed_at ELSE clock_timestamp() END
        WHERE b.name = p_bridge.name;
    END IF;
END
$$;

-- Notes why a bridge moves nothing, unless another session has locked it.
CREATE FUNCTION {schema}.note_bridge_error(p_name text, p_error text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    bridge {schema}.bridge := {schema}.lock_bridge(p_name);
BEGIN
    IF bridge.name IS NOT NULL THEN
        PERFORM {schema}.count_moved(bridge, 0, 0, p_error);
    END IF;
END
$$;
