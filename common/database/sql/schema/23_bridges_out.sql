-- How commands become messages; see 23_bridges.sql.

-- Types of a domain of which commands wait, as 'domain type': of the first p_count of each priority
-- above its floor, and of all that wait at a limit.
CREATE FUNCTION {schema}.waiting_types(p_domain text, p_floors bigint[], p_count integer)
RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE limited_type AS (
            (SELECT l.type::text AS type FROM {schema}.limited l
             WHERE l.domain = p_domain ORDER BY l.domain, l.type LIMIT 1)
            UNION ALL
            SELECT n.type FROM limited_type t, LATERAL (
                SELECT l.type::text AS type FROM {schema}.limited l
                WHERE l.domain = p_domain AND l.type > t.type ORDER BY l.domain, l.type LIMIT 1) n
        )
        SELECT DISTINCT p_domain || ' ' || w.type
        FROM (
            SELECT f.type FROM unnest(p_floors) WITH ORDINALITY q (floor, place), LATERAL (
                SELECT r.type::text AS type FROM {schema}.ready r
                WHERE r.domain = p_domain AND r.priority = (q.place - 1)::smallint
                    AND r.id > q.floor
                    AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
                ORDER BY r.domain, r.priority, r.id LIMIT p_count) f
            UNION ALL
            TABLE limited_type
        ) w);
END
$$;

-- Claims up to p_count commands of a bridge, of p_bytes of payload or just one, as a worker does.
-- Suspects, too: no code runs for them.
CREATE FUNCTION {schema}.claim_for_bridge(
    p_bridge {schema}.bridge, p_floors bigint[], p_count integer, p_bytes bigint, p_claimer bigint,
    p_lease interval, p_node bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    domains text[] := array_fill(p_bridge.domain::text, ARRAY[11]);
    priorities constant smallint[] := '{0,1,2,3,4,5,6,7,8,9,10}';
    types text[] := CASE
        WHEN p_bridge.type IS NULL THEN {schema}.waiting_types(p_bridge.domain, p_floors, p_count)
        ELSE ARRAY[p_bridge.domain || ' ' || p_bridge.type] END;
    limited text[] := '{}';
    claimed integer := 0;
    share integer := p_count;
BEGIN
    IF pg_sequence_last_value('{schema}.limits'::regclass) <> 0 THEN
        limited := {schema}.limited_types(types, true);
        types := ARRAY(SELECT unnest(types) EXCEPT SELECT unnest(limited));
    END IF;
    IF cardinality(limited) > 0 THEN
        IF cardinality(types) > 0 THEN
            -- Half of them; of a single one, it is drawn.
            share := (p_count + (random() < 0.5)::integer) / 2;
        END IF;
        PERFORM FROM {schema}.claim(
            domains, priorities, p_floors, false, limited, 500, 1, p_bytes, 32767::smallint, NULL,
            p_lease);
        RETURN QUERY
        SELECT c.* FROM {schema}.claim_in_lanes(
            ARRAY(SELECT split_part(t, ' ', 1) FROM unnest(limited) t),
            ARRAY(SELECT split_part(t, ' ', 2) FROM unnest(limited) t),
            ARRAY(SELECT DISTINCT s.name
                  FROM unnest(limited) t, LATERAL {schema}.limits_of(
                          split_part(t, ' ', 1), split_part(t, ' ', 2)) m,
                      unnest(m.shared) s (name)
                  ORDER BY s.name),
            share, p_bytes, p_claimer, p_lease, p_node, 0::smallint, 10::smallint) c
        WHERE c.token IS NOT NULL;
        GET DIAGNOSTICS claimed = ROW_COUNT;
    END IF;
    IF cardinality(types) > 0 AND claimed < p_count THEN
        RETURN QUERY
        SELECT c.* FROM {schema}.claim(
            domains, priorities, p_floors, false, types, p_count - claimed, 1, p_bytes,
            32767::smallint, p_claimer, p_lease) c
        WHERE c.token IS NOT NULL;
    END IF;
END
$$;

-- The headers of a claim, as text; see the function reply_to_and_headers.
CREATE FUNCTION {schema}.headers_of_claim(p_reply_to_and_headers text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN strpos(p_reply_to_and_headers, ' ') > 0
    THEN substr(p_reply_to_and_headers, strpos(p_reply_to_and_headers, ' ') + 1) END;

-- Sends messages, JSON, each with two objects of headers; one that is no object is left out.
-- problems: why one cannot be sent; its id is NULL. That a partitioned queue lacks a partition, an
-- error like that of a CHECK without a name, is not the fault of a message.
CREATE FUNCTION {schema}.send_messages(
    p_queue text, p_messages text[], p_headers text[], p_more_headers text[],
    OUT msg_ids bigint[], OUT problems text[]
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    many integer := cardinality(p_messages);
    half integer := many / 2;
    in_table text;
    in_constraint text;
    first record;
    second record;
BEGIN
    BEGIN
        EXECUTE $query$
            SELECT array_agg(s.id)
            FROM pgmq.send_batch($1, $2::jsonb[], ARRAY(
                SELECT CASE jsonb_typeof(h.own) WHEN 'object' THEN h.own || h.more ELSE h.more END
                FROM unnest($3::jsonb[], $4::jsonb[]) WITH ORDINALITY h (own, more, place)
                ORDER BY h.place)) s (id)
            $query$
        INTO msg_ids USING p_queue, p_messages, p_headers, p_more_headers;
        PERFORM {schema}.check_deferred();
        problems := array_fill(NULL::text, ARRAY[many]);
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS in_table = TABLE_NAME, in_constraint = CONSTRAINT_NAME;
        IF NOT {schema}.is_error_of_message(SQLSTATE)
            OR SQLSTATE = '23514' AND in_table <> '' AND in_constraint = ''
        THEN
            RAISE;
        END IF;
        msg_ids := ARRAY[NULL::bigint];
        problems := ARRAY[left(SQLERRM, 1000)];
    END;
    IF half > 0 THEN
        SELECT s.* INTO first FROM {schema}.send_messages(
            p_queue, p_messages[:half], p_headers[:half], p_more_headers[:half]) s;
        SELECT s.* INTO second FROM {schema}.send_messages(
            p_queue, p_messages[half + 1:], p_headers[half + 1:], p_more_headers[half + 1:]) s;
        msg_ids := first.msg_ids || second.msg_ids;
        problems := first.problems || second.problems;
    END IF;
END
$$;

-- Settles claims of a bridge: those that were sent are completed, and their result is the message;
-- the others go to troubleshooting.
CREATE FUNCTION {schema}.settle_sent(
    p_bridge {schema}.bridge, p_claims {schema}.claimed[], p_claimer bigint, p_msg_ids bigint[],
    p_problems text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    code constant text := 'BRIDGE_REFUSED';
    lost bigint[];
BEGIN
    SELECT {schema}.settle(
        array_agg(c.domain ORDER BY c.place), array_agg(c.priority ORDER BY c.place),
        array_agg(c.id ORDER BY c.place), array_agg(c.token ORDER BY c.place),
        array_agg(c.command_id ORDER BY c.place), p_claimer,
        array_agg(CASE WHEN m.msg_id IS NULL THEN 'TROUBLE' ELSE 'COMPLETED' END
                  ORDER BY c.place),
        array_agg((c.attempts + 1)::smallint ORDER BY c.place),
        array_agg(c.losses ORDER BY c.place), array_agg(c.max_attempts ORDER BY c.place),
        array_agg(CASE WHEN m.msg_id IS NOT NULL
                  THEN json_build_object('queue', p_bridge.queue, 'msg_id', m.msg_id) END
                  ORDER BY c.place),
        array_agg(NULL::double precision),
        array_agg(CASE WHEN m.msg_id IS NULL THEN code END ORDER BY c.place),
        array_agg(CASE WHEN m.msg_id IS NULL
                  THEN format('it cannot become a message of queue %s: %s',
                              p_bridge.queue, m.problem) END ORDER BY c.place),
        array_agg(CASE WHEN m.msg_id IS NULL
                  THEN json_build_object('reason', code, 'bridge', p_bridge.name,
                                         'queue', p_bridge.queue) END ORDER BY c.place),
        CASE WHEN bool_or(c.batch_id IS NOT NULL) THEN array_agg(c.batch_id ORDER BY c.place) END)
    INTO lost
    FROM unnest(p_claims) WITH ORDINALITY c (
            domain, priority, id, token, command_id, type, data, attempts, losses, max_attempts,
            correlation_id, reply_to_and_headers, created_at, waited, batch_id, caller, ctid, place)
        JOIN unnest(p_msg_ids, p_problems) WITH ORDINALITY m (msg_id, problem, place)
            ON m.place = c.place;
    IF cardinality(lost) > 0 THEN
        RAISE EXCEPTION 'a bridge has lost the claims of its own transaction';
    END IF;
END
$$;

-- Moves up to p_count commands of a bridge into messages of its queue, of p_bytes or just one.
-- moved is NULL if some wait and another session has locked the bridge. Their history names
-- p_claimer, under which no other session claims anything. batch_ids: the batches of which some
-- are. p_floors: as in move_in, one for each priority; floors: the next ones, NULL if they are 0.
-- (What has left a lane has an id above those that wait: no floors where there are limits.)
CREATE FUNCTION {schema}.move_out(
    p_name text, p_floors bigint[], p_count integer, p_bytes bigint, p_claimer bigint,
    p_lease interval, p_node bigint,
    OUT moved integer, OUT refused integer, OUT batch_ids uuid[], OUT floors bigint[]
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    bridge {schema}.bridge;
    claims {schema}.claimed[];
    sent record;
BEGIN
    moved := 0;
    refused := 0;
    SELECT b.* INTO bridge FROM {schema}.bridge b WHERE b.name = p_name AND b.direction = 'out';
    -- As in move_in.
    IF bridge.error IS NULL AND 0 = ALL (p_floors)
        AND cardinality({schema}.waiting_types(bridge.domain, p_floors, 1)) = 0
    THEN
        RETURN;
    END IF;
    bridge := {schema}.lock_bridge(p_name, 'out');
    IF bridge.name IS NULL THEN
        moved := NULL;
        RETURN;
    END IF;
    claims := ARRAY(
        SELECT c::{schema}.claimed FROM {schema}.claim_for_bridge(
            bridge, p_floors, least(p_count, bridge.batch_size), p_bytes, p_claimer, p_lease,
            p_node) c);
    IF cardinality(claims) > 0 THEN
        INSERT INTO {schema}.incarnation (id, worker, lease, node)
        VALUES (p_claimer, 'bridge:' || p_name, p_lease, p_node)
        ON CONFLICT DO NOTHING;
        SELECT s.* INTO sent FROM {schema}.send_messages(
            bridge.queue, ARRAY(SELECT c.data FROM unnest(claims) c),
            ARRAY(SELECT {schema}.headers_of_claim(c.reply_to_and_headers) FROM unnest(claims) c),
            ARRAY(SELECT json_build_object(
                    'command_id', c.command_id, 'correlation_id', c.correlation_id,
                    'domain', c.domain, 'type', c.type)::text
                  FROM unnest(claims) c)) s;
        PERFORM {schema}.settle_sent(bridge, claims, p_claimer, sent.msg_ids, sent.problems);
        -- None of them is left: nothing waits for the end of this lease.
        DELETE FROM {schema}.lease l WHERE l.claimer = p_claimer;
        refused := cardinality(array_positions(sent.msg_ids, NULL));
        moved := cardinality(claims) - refused;
        batch_ids := ARRAY(
            SELECT DISTINCT c.batch_id FROM unnest(claims) c WHERE c.batch_id IS NOT NULL);
        IF pg_sequence_last_value('{schema}.limits'::regclass) = 0 THEN
            floors := ARRAY(
                SELECT greatest(q.floor, (
                    SELECT max(c.id) FROM unnest(claims) c WHERE c.priority = q.place - 1))
                FROM unnest(p_floors) WITH ORDINALITY q (floor, place) ORDER BY q.place);
        END IF;
    END IF;
    PERFORM {schema}.count_moved(bridge, moved, refused, NULL);
END
$$;
