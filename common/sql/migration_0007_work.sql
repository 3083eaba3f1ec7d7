-- What workers do with commands. Planner settings of a function make its plans
-- independent of statistics: right after a burst these still say "empty", and a
-- claim that sorts the backlog falls from 80,000 commands a second to 2,000.

-- The nearest time that Python's datetime can hold in every time zone, and from which an age
-- can be computed.
CREATE FUNCTION {schema}.finite(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(greatest(p_time, '0002-01-01 00:00+00'::timestamptz),
             '9998-12-31 00:00+00'::timestamptz);

-- Whether ended leases are left alone for now: when none of the nodes has renewed for two
-- thirds of a lease, the cause is the server (its clock was set, ready was locked), and not
-- the nodes. They get half a lease, from the first call that finds this, for a renewal, which
-- comes each third; a node that has not renewed by then is gone. Each takeover of an ended
-- lease and each renewal calls this first.
CREATE FUNCTION {schema}.waits_for_renewals() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    latest timestamptz;
    longest interval;
    ends timestamptz;
BEGIN
    SELECT max(n.renewed_at), max(n.lease) INTO latest, longest FROM {schema}.node n;
    IF latest IS NULL THEN
        RETURN false;
    END IF;
    SELECT to_timestamp(last_value / 1000000.0::float8) INTO ends FROM {schema}.patience;
    IF ends > present AND ends <= present + longest / 2 THEN
        RETURN true;
    ELSIF latest BETWEEN present - longest * (2 / 3.0::float8) AND present THEN
        RETURN false;
    ELSIF ends BETWEEN latest AND present THEN
        RETURN false;
    END IF;
    -- A time to come is from before the clock was set back: it would never be the past.
    UPDATE {schema}.node SET renewed_at = '-infinity'
    WHERE id IN (
        SELECT n.id FROM {schema}.node n WHERE n.renewed_at > present FOR UPDATE SKIP LOCKED);
    PERFORM setval('{schema}.patience',
                   (extract(epoch FROM present + longest / 2) * 1000000::numeric)::bigint);
    RETURN true;
END
$$;

-- Whether a claim's lease has ended. One further ahead than its claimer ever asks for, and a
-- renewal, has: the clock was set back, and the claimer has not renewed since.
CREATE FUNCTION {schema}.lease_is_over(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    IF p_lease_until > present AND NOT EXISTS (
        SELECT FROM {schema}.incarnation i
        WHERE i.id = p_claimer AND p_lease_until > present + i.lease + i.lease / 3)
    THEN
        RETURN false;
    END IF;
    RETURN NOT {schema}.waits_for_renewals();
END
$$;

-- The fence. Settling, releasing and renewing match the command and the claimer beside the
-- key and the token: a server that was restored to an earlier point gives ids and tokens
-- again, to other commands. (IS NOT DISTINCT FROM is = to which no index can answer: a plan
-- by ready_command would find the same rows in random order.)

-- Settles claims of p_claimer with their outcomes and returns the ids of those that it did
-- not find. Sorted by key before, because it may wait for rows.
--   kind       what becomes of the command
--   COMPLETED  to history, with result
--   FAILED     to history, with its error
--   RETRY      to scheduled, claimable again after delay
--   TROUBLE    to troubleshooting
-- attempts and losses are what is counted in all. Everything but COMPLETED leaves an event.
CREATE FUNCTION {schema}.settle(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_kinds text[], p_attempts smallint[],
    p_losses smallint[], p_max_attempts smallint[], p_results json[], p_delays double precision[],
    p_codes text[], p_messages text[], p_details json[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    settled bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.ready r
        USING unnest(p_domains, p_priorities, p_ids, p_tokens, p_command_ids, p_kinds, p_attempts,
                     p_losses, p_max_attempts, p_results, p_delays, p_codes, p_messages, p_details)
            o (domain, priority, id, token, command_id, kind, attempts, losses,
               max_attempts, result, delay, code, message, details)
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
            AND r.token = o.token AND r.claimer = p_claimer
            AND r.command_id IS NOT DISTINCT FROM o.command_id
        RETURNING r.id, r.token, r.claimer, r.claimed_at, r.created_at, r.due_at, r.command_id,
            r.correlation_id, r.priority, o.losses, r.domain, r.type, r.reply_to, r.data,
            r.max_attempts AS sent_max_attempts, o.attempts, o.max_attempts, o.kind, o.result,
            o.delay, o.code, o.message, o.details
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, status, data, result,
            error_code, error_message)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, attempts, losses, max_attempts, domain, type, reply_to, kind, data, result,
            code, message
        FROM gone WHERE kind IN ('COMPLETED', 'FAILED')
    ), later AS (
        INSERT INTO {schema}.scheduled (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, reply_to, data, error_code,
            error_message)
        SELECT token, claimer, claimed_at, created_at,
            clock_timestamp() + make_interval(secs => delay), command_id, correlation_id,
            priority, attempts, losses, sent_max_attempts, domain, type, reply_to, data, code,
            message
        FROM gone WHERE kind = 'RETRY'
    ), trouble AS (
        INSERT INTO {schema}.troubleshooting (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, sent_max_attempts, domain, type, reply_to, data,
            error_code, error_message)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, attempts, losses, max_attempts, sent_max_attempts, domain, type, reply_to,
            data, code, message
        FROM gone WHERE kind = 'TROUBLE'
    ), events AS (
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message, details)
        SELECT claimer, claimed_at, token, command_id, attempts, domain,
            CASE kind WHEN 'FAILED' THEN 'BUSINESS_RULE_FAILED'
                      WHEN 'TROUBLE' THEN 'MOVED_TO_TROUBLESHOOTING_QUEUE' ELSE 'FAILED' END,
            code, message, details
        FROM gone WHERE kind <> 'COMPLETED'
    ), replies AS (
        INSERT INTO {schema}.ready (domain, priority, command_id, type, correlation_id, data)
        SELECT reply_to, 5, {schema}.new_id(), 'Reply', correlation_id, json_build_object(
            'command_id', command_id, 'type', type,
            'outcome', CASE kind WHEN 'COMPLETED' THEN 'SUCCESS' ELSE 'FAILED' END,
            'result', CASE kind WHEN 'COMPLETED' THEN result ELSE json_build_object(
                'code', code, 'message', message, 'details', details -> 'details') END)
        FROM gone WHERE reply_to IS NOT NULL AND kind IN ('COMPLETED', 'FAILED')
    )
    SELECT array_agg(id) INTO settled FROM gone;
    IF cardinality(settled) = cardinality(p_ids) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT id FROM unnest(p_ids) id WHERE settled IS NULL OR id <> ALL (settled));
END
$$;

-- Settles what was completed and asked for no reply, and nothing else: the hot path.
-- (In one statement with settle's other outcomes it is a third slower: the triggers of
-- inserts fire for no rows, too.)
CREATE FUNCTION {schema}.complete(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_attempts smallint[], p_max_attempts smallint[],
    p_results json[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    settled bigint[];
BEGIN
    IF cardinality(p_ids) = 0 THEN
        RETURN '{}';
    END IF;
    WITH gone AS (
        DELETE FROM {schema}.ready r
        USING unnest(p_domains, p_priorities, p_ids, p_tokens, p_command_ids, p_attempts,
                     p_max_attempts, p_results)
            o (domain, priority, id, token, command_id, attempts, max_attempts, result)
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
            AND r.token = o.token AND r.claimer = p_claimer
            AND r.command_id IS NOT DISTINCT FROM o.command_id
        RETURNING r.token, r.claimer, r.claimed_at, r.created_at, r.due_at, r.command_id,
            r.correlation_id, r.priority, o.attempts, r.losses, o.max_attempts, r.domain, r.type,
            r.data, o.result, r.id
    ), history AS (
        INSERT INTO {schema}.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, domain, type, data, result, status)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, attempts, losses, max_attempts, domain, type, data, result, 'COMPLETED'
        FROM gone
    )
    SELECT array_agg(id) INTO settled FROM gone;
    IF cardinality(settled) = cardinality(p_ids) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT id FROM unnest(p_ids) id WHERE settled IS NULL OR id <> ALL (settled));
END
$$;

-- How many of the first of these rows, which the caller has locked, hold at most p_bytes
-- of payload together: as the worker receives it, which only unpacking tells of a packed one.
CREATE FUNCTION {schema}.fitting(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_bytes bigint
) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    taken bigint := 0;
BEGIN
    FOR place IN 1..cardinality(p_ids) LOOP
        taken := taken + (
            SELECT CASE WHEN pg_column_compression(r.data) IS NULL THEN pg_column_size(r.data)
                        ELSE octet_length(r.data::text) END
            FROM {schema}.ready r
            WHERE r.domain = p_domains[place] AND r.priority = p_priorities[place]
                AND r.id = p_ids[place]);
        IF taken > p_bytes THEN
            RETURN place - 1;
        END IF;
    END LOOP;
    RETURN cardinality(p_ids);
END
$$;

-- Claims up to p_count commands: of the first (domain, priority) that has any, then
-- of the next, each in the order of ids from its floor on; with p_below, and where there is
-- nothing above the floors, from below them. Those that hold more than p_bytes of payload together are
-- too many, but the first p_least are claimed whatever they hold. A row that its last claimer
-- neither settled nor gave back counts a loss; those with more than p_most_losses are left to
-- who runs them alone. The lease test stands beside SKIP LOCKED, so that it is made again on
-- the row's latest version.
--
-- A payload that is not packed has the size of its column. A packed one that lies in its row is
-- unpacked for it, which is quick; of one that lies outside the most is taken that it could be
-- (lz4 packs 255 bytes into one), and only if there is too much of that, `fitting` looks closer.
--
-- The last row has no token and is no claim. It says how far the claim has looked: at every
-- (domain, priority) before its own, or at all if it has none, nothing that could be claimed is
-- left of the ids up to its id, but for rows that others were inserting or had locked; and
-- `waited` is the number of pages that were read to look. So a next claim needs to walk over
-- none of them again.
CREATE FUNCTION {schema}.claim(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_below boolean, p_types text[],
    p_count integer, p_least integer, p_bytes bigint, p_most_losses smallint, p_claimer bigint,
    p_lease interval
) RETURNS TABLE (
    domain text, priority smallint, id bigint, token bigint, command_id uuid, type text,
    data text, attempts smallint, losses smallint, max_attempts smallint, correlation_id uuid,
    reply_to text, created_at timestamptz, waited double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    lows bigint[] := p_floors;
    highs bigint[] := array_fill(9223372036854775807, ARRAY[cardinality(p_floors)]);
    domains text[];
    priorities smallint[];
    ids bigint[];
    weight bigint;
    any_lost boolean;
    fit integer := 0;
    pages bigint := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass);
    -- Before the rows are read: a row that is committed later may have a lower id.
    -- (A function is quicker than a query of the sequence; NULL is one without any value.)
    seen_to bigint := coalesce(pg_sequence_last_value('{schema}.ready_id_seq'::regclass), 0);
    stop integer;
    present timestamptz := clock_timestamp();
    -- No worker with a lease as long as this one's has a later end.
    latest_end timestamptz := present + p_lease + p_lease / 3;
BEGIN
    IF p_count = 0 THEN
        RETURN;
    END IF;
    LOOP
        SELECT array_agg(p.domain::text), array_agg(p.priority::smallint), array_agg(p.id),
            sum(p.bytes), bool_or(p.was_claimed)
        INTO domains, priorities, ids, weight, any_lost
        FROM (
            SELECT c.domain, c.priority, c.id, c.bytes, c.was_claimed
            FROM unnest(p_domains, p_priorities, lows, highs) q (domain, priority, low, high),
                LATERAL (
                    SELECT r.domain, r.priority, r.id,
                        CASE WHEN pg_column_compression(r.data) IS NULL
                             THEN pg_column_size(r.data)
                             WHEN pg_column_size(r.data) < 2048 THEN octet_length(r.data::text)
                             ELSE pg_column_size(r.data) * 255::bigint END AS bytes,
                        r.claimer IS NOT NULL AS was_claimed
                    FROM {schema}.ready r
                    WHERE r.domain = q.domain AND r.priority = q.priority
                        AND r.id > q.low AND r.id <= q.high
                        AND (r.lease_until IS NULL
                             OR r.lease_until NOT BETWEEN present AND latest_end
                             AND {schema}.lease_is_over(r.claimer, r.lease_until))
                        AND (r.domain || ' ' || r.type) = ANY (p_types)
                        AND r.losses + (r.claimer IS NOT NULL)::integer <= p_most_losses
                    ORDER BY r.domain, r.priority, r.id
                    LIMIT p_count
                    FOR UPDATE SKIP LOCKED
                ) c
            WHERE NOT EXISTS (
                SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
            LIMIT p_count
        ) p;
        EXIT WHEN ids IS NOT NULL OR NOT p_below OR highs = p_floors OR 0 = ALL (p_floors);
        lows := array_fill(0::bigint, ARRAY[cardinality(p_floors)]);
        highs := p_floors;
    END LOOP;
    waited := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass) - pages;
    id := seen_to;
    IF ids IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    fit := cardinality(ids);
    IF weight > p_bytes THEN
        fit := greatest(p_least, {schema}.fitting(domains, priorities, ids, p_bytes));
    END IF;
    IF any_lost THEN
        PERFORM {schema}.note_lost(domains[:fit], priorities[:fit], ids[:fit]);
    END IF;
    RETURN QUERY
    UPDATE {schema}.ready r SET
        token = r.token + 1,
        losses = r.losses + (r.claimer IS NOT NULL)::integer,
        claimer = p_claimer,
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + p_lease
    FROM unnest(domains[:fit], priorities[:fit], ids[:fit]) p (domain, priority, id)
    WHERE r.domain = p.domain AND r.priority = p.priority AND r.id = p.id
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        r.reply_to::text, {schema}.finite(r.created_at),
        extract(epoch FROM clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision;
    IF fit < cardinality(ids) OR fit = p_count THEN
        stop := least(fit + 1, cardinality(ids));
        domain := domains[stop];
        priority := priorities[stop];
    END IF;
    RETURN NEXT;
END
$$;

-- Writes an event for each of these rows whose claim is lost, as its lease ended; the next
-- claim, which has locked the rows, writes over the claimer.
CREATE FUNCTION {schema}.note_lost(
    p_domains text[], p_priorities smallint[], p_ids bigint[]
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    INSERT INTO {schema}.event (
        claimer, claimed_at, token, command_id, attempt, domain, kind, code, message)
    SELECT r.claimer, r.claimed_at, r.token, r.command_id, r.attempts, r.domain, 'LOST',
        'LEASE_ENDED', 'its lease ended, because its worker or its node was gone'
    FROM unnest(p_domains, p_priorities, p_ids) k (domain, priority, id)
    JOIN {schema}.ready r
        ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id
    WHERE r.claimer IS NOT NULL
$$;

-- Whether a command waits that was lost so often that it runs alone from now on; by the
-- small index of what was lost at all.
CREATE FUNCTION {schema}.suspect_waits(p_types text[], p_losses smallint) RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.ready r
        WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND (r.lease_until IS NULL
                 OR {schema}.lease_is_over(r.claimer, r.lease_until))
            AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused))
$$;

-- Claims the first command that was lost so often that it runs alone from now on.
CREATE FUNCTION {schema}.claim_suspect(
    p_domains text[], p_types text[], p_losses smallint, p_claimer bigint, p_lease interval
) RETURNS TABLE (
    domain text, priority smallint, id bigint, token bigint, command_id uuid, type text,
    data text, attempts smallint, losses smallint, max_attempts smallint, correlation_id uuid,
    reply_to text, created_at timestamptz, waited double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    picked record;
BEGIN
    SELECT r.domain, r.priority, r.id INTO picked
    FROM {schema}.ready r
    WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
        AND r.domain = ANY (p_domains)
        AND (r.domain || ' ' || r.type) = ANY (p_types)
        AND (r.lease_until IS NULL OR {schema}.lease_is_over(r.claimer, r.lease_until))
        AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused)
    ORDER BY r.id
    LIMIT 1
    FOR UPDATE OF r SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM {schema}.note_lost(
        ARRAY[picked.domain]::text[], ARRAY[picked.priority]::smallint[], ARRAY[picked.id]);
    RETURN QUERY
    UPDATE {schema}.ready r SET
        token = r.token + 1,
        losses = r.losses + (r.claimer IS NOT NULL)::integer,
        claimer = p_claimer,
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + p_lease
    WHERE r.domain = picked.domain AND r.priority = picked.priority AND r.id = picked.id
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        r.reply_to::text, {schema}.finite(r.created_at),
        extract(epoch FROM clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision;
END
$$;

-- Moves a row of p_table (ready or scheduled) with which nothing else can be done to
-- troubleshooting; false if it has been claimed, released, settled or promoted since. Writes no history, no reply and no value of the
-- caller but p_code and p_message, so that what a settlement or a claim was refused for does
-- not matter here. If troubleshooting has a command of the same id, the row gets a new one.
CREATE FUNCTION {schema}.set_aside(
    p_table text, p_domain text, p_priority smallint, p_id bigint, p_token bigint,
    p_command_id uuid, p_claimer bigint, p_code text, p_message text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
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
BEGIN
    WITH from_ready AS (
        DELETE FROM {schema}.ready r
        WHERE p_table = 'ready' AND r.domain = p_domain AND r.priority = p_priority
            AND r.id = p_id AND r.token = p_token AND r.command_id = p_command_id
            AND r.claimer IS NOT DISTINCT FROM p_claimer
        RETURNING r.claimed_at, r.created_at, r.due_at, r.correlation_id, r.attempts, r.losses,
            r.max_attempts, r.type, r.reply_to, r.data
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled s
        WHERE p_table = 'scheduled' AND s.domain = p_domain AND s.id = p_id
            AND s.token = p_token AND s.command_id = p_command_id
        RETURNING s.claimed_at, s.created_at, s.due_at, s.correlation_id, s.attempts, s.losses,
            s.max_attempts, s.type, s.reply_to, s.data
    ), gone AS (
        TABLE from_ready UNION ALL TABLE from_scheduled
    )
    INSERT INTO {schema}.troubleshooting (
        domain, priority, token, command_id, claimer, error_code, error_message,
        claimed_at, created_at, due_at, correlation_id, attempts, losses, max_attempts,
        sent_max_attempts, type, reply_to, data)
    SELECT p_domain, p_priority, p_token, new_command_id, p_claimer, p_code, why,
        claimed_at, created_at, due_at, correlation_id, attempts, losses, max_attempts,
        max_attempts, type, reply_to, data
    FROM gone
    RETURNING attempts, claimed_at INTO event_attempt, event_claimed_at;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    BEGIN
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message, details)
        SELECT p_claimer, event_claimed_at, p_token, c, event_attempt, p_domain,
            'MOVED_TO_TROUBLESHOOTING_QUEUE', p_code, why,
            json_build_object('reason', p_code)
        FROM (SELECT DISTINCT unnest(ARRAY[p_command_id, new_command_id])) ids (c);
    EXCEPTION WHEN OTHERS THEN
        NULL;  -- A row out of the way is worth more than its event.
    END;
    RETURN true;
END
$$;

-- Gives back what p_claimer has claimed, uncharged; keys whose token has moved on are not its
-- any more. p_losses has NULL for a command that had not begun, else the losses that it counts,
-- and leaves an event with p_why. An execution that has begun never ends without a trace: no
-- losses at all are accepted only with a p_reason, which is not the command's doing. Returns the
-- ids given back; rows that another session has locked are skipped.
--   STOPPED        its worker was ordered to stop
--   DATABASE_AWAY  it was cut off from its database
CREATE FUNCTION {schema}.release(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_losses smallint[], p_reason text, p_why text
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    given bigint[];
BEGIN
    IF 0 > ANY (p_losses) OR (0 = ANY (p_losses)
        AND coalesce(p_reason, '') NOT IN ('STOPPED', 'DATABASE_AWAY'))
    THEN
        RAISE EXCEPTION 'a command that has begun is released without a loss and without a reason'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH ours AS MATERIALIZED (
        SELECT r.domain, r.priority, r.id, r.token, r.claimer, r.claimed_at, k.losses
        FROM {schema}.ready r
        JOIN unnest(p_domains, p_priorities, p_ids, p_tokens, p_command_ids, p_losses)
            k (domain, priority, id, token, command_id, losses)
            ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id
            AND r.token = k.token AND r.claimer = p_claimer
            AND r.command_id IS NOT DISTINCT FROM k.command_id
        FOR UPDATE OF r SKIP LOCKED
    ), back AS (
        UPDATE {schema}.ready r SET
            token = r.token + 1, losses = r.losses + coalesce(o.losses, 0), claimer = NULL,
            lease_until = NULL
        FROM ours o
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
        RETURNING r.id, r.domain, r.command_id, r.attempts, o.losses, o.token, o.claimer,
            o.claimed_at
    ), events AS (
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message)
        SELECT claimer, claimed_at, token, command_id, attempts, domain, 'LOST',
            CASE losses WHEN 0 THEN p_reason ELSE 'LOST' END, p_why
        FROM back WHERE losses IS NOT NULL
    )
    SELECT array_agg(id) INTO given FROM back;
    PERFORM {schema}.wake(d) FROM (SELECT DISTINCT unnest(p_domains) d) domains;
    RETURN coalesce(given, '{}');
END
$$;

-- Renews the leases of a node's claims, or shows with none that the node could; returns the
-- ids of claims that their claimers have lost. By ready_command: a key on the board may have
-- no domain. A locked row is being settled, or its claim is being lost: it is skipped,
-- without waiting.
CREATE FUNCTION {schema}.renew(
    p_command_ids uuid[], p_ids bigint[], p_tokens bigint[], p_claimers bigint[],
    p_node bigint, p_lease interval
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
    PERFORM {schema}.waits_for_renewals();
    WITH held AS MATERIALIZED (
        SELECT r.domain, r.priority, r.id FROM {schema}.ready r
        JOIN unnest(p_command_ids, p_ids, p_tokens, p_claimers) k (command_id, id, token, claimer)
            ON r.command_id = k.command_id AND r.id = k.id AND r.token = k.token
            AND r.claimer = k.claimer
        FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE {schema}.ready r SET lease_until = clock_timestamp() + p_lease
    FROM held h
    WHERE r.domain = h.domain AND r.priority = h.priority AND r.id = h.id;
    INSERT INTO {schema}.node AS n (id, lease, renewed_at)
    VALUES (p_node, p_lease, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET lease = EXCLUDED.lease, renewed_at = EXCLUDED.renewed_at;
    DELETE FROM {schema}.node n
    WHERE n.renewed_at < clock_timestamp() - 10 * n.lease AND NOT {schema}.waits_for_renewals();
    RETURN ARRAY(
        SELECT k.id
        FROM unnest(p_command_ids, p_ids, p_tokens, p_claimers) k (command_id, id, token, claimer)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.ready r
            WHERE r.command_id = k.command_id AND r.id = k.id AND r.token = k.token
                AND r.claimer = k.claimer));
END
$$;

-- Moves up to p_count due commands, of p_bytes as stored or just one, from scheduled to ready,
-- each with a new id, so that no claim's floor is above it. Returns how many.
CREATE FUNCTION {schema}.promote(p_count integer, p_bytes bigint, p_skipped bigint[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    promoted bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.scheduled s
        USING {schema}.find_due(p_count, p_skipped) d
        WHERE s.due_at = d.due_at AND s.id = d.id AND (d.bytes <= p_bytes OR d.place = 1)
        RETURNING s.token, s.claimed_at, s.created_at, s.due_at, s.command_id, s.correlation_id,
            s.priority, s.attempts, s.losses, s.max_attempts, s.domain, s.type, s.reply_to,
            s.data, s.error_code, s.error_message, s.id
    )
    INSERT INTO {schema}.ready (
        token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,
        losses, max_attempts, domain, type, reply_to, data, error_code, error_message)
    SELECT token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,
        losses, max_attempts, domain, type, reply_to, data, error_code, error_message
    FROM gone ORDER BY due_at, id;
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;

-- Locks up to p_count due commands and returns their keys, and the bytes of each with those
-- before it. If more are due than that, domains take turns, and within a domain the most urgent
-- priority comes first: only then is the first entry of each (domain, priority) visited in the
-- index scheduled_turn, as nothing of this may cost a few due commands among many domains.
CREATE FUNCTION {schema}.find_due(p_count integer, p_skipped bigint[])
RETURNS TABLE (due_at timestamptz, id bigint, place bigint, bytes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- A variable: no index is searched for what a VOLATILE function says.
    present timestamptz := clock_timestamp();
BEGIN
    PERFORM FROM {schema}.scheduled s
    WHERE s.due_at <= present AND s.id <> ALL (p_skipped)
    ORDER BY s.due_at, s.id
    OFFSET p_count LIMIT 1;
    IF NOT FOUND THEN
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT s.due_at, s.id, pg_column_size(s.data) AS bytes FROM {schema}.scheduled s
            WHERE s.due_at <= present AND s.id <> ALL (p_skipped)
            ORDER BY s.due_at, s.id
            LIMIT p_count
            FOR UPDATE SKIP LOCKED
        )
        SELECT p.due_at::timestamptz, p.id, row_number() OVER (ORDER BY p.due_at, p.id),
            sum(p.bytes) OVER (ORDER BY p.due_at, p.id)
        FROM picked p;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE queue AS (
        (SELECT s.domain, s.priority, s.due_at FROM {schema}.scheduled s
         ORDER BY s.domain, s.priority, s.due_at, s.id LIMIT 1)
        UNION ALL
        SELECT n.domain, n.priority, n.due_at
        FROM queue q, LATERAL (
            SELECT s.domain, s.priority, s.due_at FROM {schema}.scheduled s
            WHERE (s.domain, s.priority) > (q.domain, q.priority)
            ORDER BY s.domain, s.priority, s.due_at, s.id LIMIT 1) n
    ), domains AS MATERIALIZED (
        SELECT q.domain, array_agg(q.priority ORDER BY q.priority) AS priorities,
            greatest(1, p_count / count(*) OVER ()) AS share
        FROM queue q
        WHERE q.due_at <= present
        GROUP BY q.domain
        ORDER BY min(q.due_at)
    ), picked AS MATERIALIZED (
        SELECT t.domain, t.priority, t.due_at, t.id, t.bytes
        FROM domains d, LATERAL (
            SELECT c.domain, c.priority, c.due_at, c.id, c.bytes
            FROM unnest(d.priorities) q (priority), LATERAL (
                SELECT s.domain, s.priority, s.due_at, s.id, pg_column_size(s.data) AS bytes
                FROM {schema}.scheduled s
                WHERE s.domain = d.domain AND s.priority = q.priority
                    AND s.due_at <= present AND s.id <> ALL (p_skipped)
                ORDER BY s.domain, s.priority, s.due_at, s.id
                LIMIT d.share
                FOR UPDATE SKIP LOCKED
            ) c
            LIMIT d.share
        ) t
        LIMIT p_count
    ), turns AS (
        SELECT p.domain, p.due_at, p.id, p.bytes, row_number() OVER (
            PARTITION BY p.domain ORDER BY p.priority, p.due_at, p.id) AS turn
        FROM picked p
    )
    SELECT t.due_at::timestamptz, t.id, row_number() OVER (ORDER BY t.turn, t.domain),
        sum(t.bytes) OVER (ORDER BY t.turn, t.domain)
    FROM turns t;
END
$$;
