-- How messages become commands; see 23_bridges.sql.

-- The id of a command that a message names as its cause, if that is one; else NULL.
CREATE FUNCTION {schema}.correlation_of_message(p_headers jsonb) RETURNS uuid
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_headers ->> 'correlation_id'
        ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$'
    THEN (p_headers ->> 'correlation_id')::uuid END;

-- Whether a command can have all headers of a message, as nearly always.
CREATE FUNCTION {schema}.has_plain_headers(p_headers jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN jsonb_typeof(p_headers) <> 'object' OR octet_length(p_headers::text) > 4000 THEN false
    ELSE NOT jsonb_path_exists(p_headers, '$.keyvalue() ? (@.value.type() <> "string"'
            ' || !(@.key like_regex "^[A-Za-z][A-Za-z0-9_.-]*$")'
            ' || @.key == "correlation_id" || @.key == "pgmq_msg_id")')
        AND jsonb_array_length(jsonb_path_query_array(p_headers, '$.keyvalue()')) < 32 END;

-- Of any headers, those that a command can have, after the id of the message: not what is no text,
-- or has a name that no header can have.
CREATE FUNCTION {schema}.legal_headers_of_message(p_msg_id bigint, p_headers jsonb) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT ('{"pgmq_msg_id":"' || p_msg_id::text || '"'
        || coalesce(string_agg(',' || kept.text, '' ORDER BY kept.place), '') || '}')::json
    FROM (
        SELECT legal.place, legal.text,
            sum(octet_length(legal.text) + 1) OVER (ORDER BY legal.place) AS bytes
        FROM (
            SELECT to_json(h.key)::text || ':' || to_json(h.value #>> '{}')::text AS text,
                row_number() OVER (
                    ORDER BY h.key IN ('traceparent', 'tracestate', 'tenant') DESC, h.key) AS place
            FROM jsonb_each(CASE jsonb_typeof(p_headers) WHEN 'object' THEN p_headers END) h
            WHERE jsonb_typeof(h.value) = 'string' AND length(h.value #>> '{}') <= 4000
                AND length(h.key) <= 100 AND h.key ~ '^[A-Za-z][A-Za-z0-9_.-]*$'
                AND h.key <> 'pgmq_msg_id'
                AND (h.key <> 'correlation_id'
                     OR {schema}.correlation_of_message(p_headers) IS NULL)
        ) legal
        WHERE legal.place < 32
    ) kept
    WHERE kept.bytes <= 8100
$$;

-- The headers of the command that a message becomes: its id, and as many of its own headers as a
-- command can have.
CREATE FUNCTION {schema}.headers_of_message(p_msg_id bigint, p_headers jsonb) RETURNS json
LANGUAGE sql STABLE
RETURN CASE
    WHEN p_headers IS NULL THEN ('{"pgmq_msg_id":"' || p_msg_id::text || '"}')::json
    WHEN {schema}.has_plain_headers(p_headers)
        THEN (p_headers || jsonb_build_object('pgmq_msg_id', p_msg_id::text))::json
    ELSE {schema}.legal_headers_of_message(p_msg_id, p_headers) END;

-- Locks up to p_count messages of a queue above p_floor that are visible, in their order, until
-- these hold p_bytes, where packed ones are estimated; returns their ids. Skips locked ones.
CREATE FUNCTION {schema}.pick_messages(
    p_queue text, p_floor bigint, p_count integer, p_bytes bigint
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    msg_ids bigint[];
BEGIN
    EXECUTE format($query$
        SELECT array_agg(f.msg_id ORDER BY f.msg_id)
        FROM (
            SELECT p.msg_id, sum(p.bytes) OVER (ORDER BY p.msg_id) - p.bytes AS bytes_before
            FROM (
                SELECT m.msg_id, coalesce(pg_column_size(m.message), 0)::bigint
                    * CASE WHEN pg_column_compression(m.message) IS NULL THEN 1 ELSE 8 END AS bytes
                FROM pgmq.%I m
                WHERE m.vt <= clock_timestamp() AND ($3 = 0 OR m.msg_id > $3)
                ORDER BY m.msg_id LIMIT $1
                FOR UPDATE SKIP LOCKED
            ) p
        ) f
        WHERE f.bytes_before < $2
        $query$, 'q_' || p_queue)
    INTO msg_ids USING p_count, p_bytes, p_floor;
    RETURN coalesce(msg_ids, '{}');
END
$$;

-- Moves a message that cannot become a command to troubleshooting. If even that fails it stays
-- where it is, invisible for an hour; returns why.
CREATE FUNCTION {schema}.refuse_message(p_bridge {schema}.bridge, p_msg_id bigint, p_why text)
RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    code constant text := 'BRIDGE_REFUSED';
    why text := format('message %s of queue %s cannot become a command: %s',
        p_msg_id, p_bridge.queue, p_why);
BEGIN
    EXECUTE format($query$
        WITH gone AS (
            DELETE FROM pgmq.%I m WHERE m.msg_id = $1 RETURNING m.msg_id, m.message, m.headers
        ), trouble AS (
            INSERT INTO {schema}.troubleshooting (
                token, created_at, command_id, correlation_id, priority, attempts, losses, domain,
                type, reply_to, data, headers, error_code, error_message)
            SELECT 0, clock_timestamp(), c.command_id,
                coalesce({schema}.correlation_of_message(c.headers), c.command_id), 5, 0, 0, $2,
                $3, $4, coalesce(c.message, 'null')::json,
                {schema}.headers_of_message(c.msg_id, c.headers), $5, $6
            FROM (SELECT g.*, {schema}.new_id() AS command_id FROM gone g) c
            RETURNING command_id
        )
        INSERT INTO {schema}.event (command_id, domain, kind, code, message, details)
        SELECT t.command_id, $2, 'MOVED_TO_TROUBLESHOOTING_QUEUE', $5, $6,
            json_build_object('reason', $5, 'bridge', $7, 'queue', $8, 'msg_id', $1)
        FROM trouble t
        $query$, 'q_' || p_bridge.queue)
    USING p_msg_id, p_bridge.domain::text, p_bridge.type::text, p_bridge.reply_to::text, code, why,
        p_bridge.name, p_bridge.queue;
    PERFORM {schema}.check_deferred();
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    IF NOT {schema}.is_error_of_message(SQLSTATE) THEN
        RAISE;
    END IF;
    EXECUTE format(
        'UPDATE pgmq.%I m SET vt = clock_timestamp() + interval ''1 hour'' WHERE m.msg_id = $1',
        'q_' || p_bridge.queue)
    USING p_msg_id;
    RETURN format('%s, nor be stored in troubleshooting (%s): it is invisible for an hour',
        why, left(SQLERRM, 1000));
END
$$;

-- Sends messages that are locked as commands of a bridge's domain. unmovable: why one of them can
-- neither become a command nor be stored in troubleshooting.
CREATE FUNCTION {schema}.take_messages(
    p_bridge {schema}.bridge, p_msg_ids bigint[],
    OUT moved integer, OUT refused integer, OUT unmovable text
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    half integer := cardinality(p_msg_ids) / 2;
    why text;
    in_constraint text;
    first record;
    second record;
BEGIN
    BEGIN
        EXECUTE format($query$
            WITH gone AS (
                DELETE FROM pgmq.%I m WHERE m.msg_id = ANY ($1)
                RETURNING m.msg_id, m.message, m.headers
            )
            INSERT INTO {schema}.ready (
                domain, priority, command_id, correlation_id, type, reply_to, data, headers)
            SELECT $2, 5, c.command_id,
                coalesce({schema}.correlation_of_message(c.headers), c.command_id),
                $3, $4, coalesce(c.message, 'null')::json,
                {schema}.headers_of_message(c.msg_id, c.headers)
            FROM (SELECT g.*, {schema}.new_id() AS command_id FROM gone g) c
            ORDER BY c.msg_id
            $query$, 'q_' || p_bridge.queue)
        USING p_msg_ids, p_bridge.domain, p_bridge.type, p_bridge.reply_to;
        GET DIAGNOSTICS moved = ROW_COUNT;
        PERFORM {schema}.check_deferred();
        refused := 0;
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        IF NOT {schema}.is_error_of_message(SQLSTATE) THEN
            RAISE;
        END IF;
        GET STACKED DIAGNOSTICS in_constraint = CONSTRAINT_NAME;
        why := CASE WHEN in_constraint = 'payload_check'
            THEN 'as JSON it has more than the 16 MiB that a command holds'
            ELSE left(SQLERRM, 1000) END;
    END;
    IF half = 0 THEN
        moved := 0;
        unmovable := {schema}.refuse_message(p_bridge, p_msg_ids[1], why);
        refused := (unmovable IS NULL)::integer;
        RETURN;
    END IF;
    SELECT t.* INTO first FROM {schema}.take_messages(p_bridge, p_msg_ids[:half]) t;
    SELECT t.* INTO second FROM {schema}.take_messages(p_bridge, p_msg_ids[half + 1:]) t;
    moved := first.moved + second.moved;
    refused := first.refused + second.refused;
    unmovable := coalesce(first.unmovable, second.unmovable);
END
$$;

-- Moves up to p_count messages of a bridge's queue into commands, of about p_bytes or just one,
-- as far as the domain takes any. None if another session has locked the bridge. unmovable: as of
-- take_messages; it remains the error of the bridge as long as its message is invisible.
--
-- Takes those above p_floor, so that a busy bridge does not read again what was moved and is not
-- vacuumed yet. floor: the next one; 0 if nothing was there.
CREATE FUNCTION {schema}.move_in(
    p_name text, p_count integer, p_bytes bigint, p_floor bigint,
    OUT moved integer, OUT refused integer, OUT unmovable text, OUT floor bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    bridge {schema}.bridge;
    admission record;
    is_waiting boolean := true;
    msg_ids bigint[] := '{}';
    problem text;
BEGIN
    moved := 0;
    refused := 0;
    floor := 0;
    SELECT b.* INTO bridge FROM {schema}.bridge b WHERE b.name = p_name AND b.direction = 'in';
    IF bridge.name IS NULL THEN
        RETURN;
    END IF;
    IF p_floor = 0 THEN
        -- A lock would write something at each look at an empty queue.
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM pgmq.%I m WHERE m.vt <= statement_timestamp())',
            'q_' || bridge.queue)
        INTO is_waiting;
    END IF;
    IF NOT is_waiting AND bridge.error IS NULL THEN
        RETURN;
    END IF;
    bridge := {schema}.lock_bridge(p_name, 'in');
    IF bridge.name IS NULL THEN
        RETURN;
    END IF;
    SELECT a.refusal, a.max_depth - a.depth AS room INTO admission
    FROM {schema}.admit(bridge.domain, 1) a;
    problem := CASE admission.refusal
        WHEN 'closed' THEN format('domain %s does not accept commands', bridge.domain)
        WHEN 'full' THEN format('domain %s is full', bridge.domain) END;
    IF problem IS NULL THEN
        msg_ids := {schema}.pick_messages(
            bridge.queue, p_floor, least(p_count, bridge.batch_size, admission.room)::integer,
            p_bytes);
    END IF;
    IF cardinality(msg_ids) > 0 THEN
        floor := msg_ids[cardinality(msg_ids)];
        SELECT t.* INTO moved, refused, unmovable FROM {schema}.take_messages(bridge, msg_ids) t;
    END IF;
    PERFORM {schema}.count_moved(bridge, moved, refused, coalesce(problem, unmovable,
        CASE WHEN bridge.error LIKE '%: it is invisible for an hour'
                AND bridge.failed_at > clock_timestamp() - interval '1 hour'
            THEN bridge.error END));
END
$$;
