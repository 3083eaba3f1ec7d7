-- How workers claim commands, keep their claims and give them back.
--
-- The fence: settling, releasing and renewing match the command and the claimer as well as the
-- key and the token, because a server that was restored to an earlier point gives ids and
-- tokens again, to other commands. (IS NOT DISTINCT FROM is an = that no index can answer: a
-- plan by ready_command would find the same rows in random order.)
--
-- The settings in function_settings.sql make plans independent of statistics, which right after
-- a burst still say "empty": a claim that sorts the backlog falls from 80,000 commands/s to 2,000.

-- The nearest time that Python's datetime can hold in every time zone.
CREATE FUNCTION {schema}.finite(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(greatest(p_time, '0002-01-01 00:00+00'::timestamptz),
             '9998-12-31 00:00+00'::timestamptz);

-- A wait for renewals as one number: milliseconds since 1970, and 21 bits for the seconds of the
-- lease, which is taken for 24 days if it is longer.
CREATE FUNCTION {schema}.wait_value(p_begun_at timestamptz, p_lease interval) RETURNS bigint
LANGUAGE sql STABLE
RETURN (floor(extract(epoch FROM p_begun_at) * 1000)::bigint << 21)
    | least(ceil(extract(epoch FROM p_lease)), 2097151)::bigint;

-- The latest wait for renewals, and one for longer leases that it interrupted: when each has begun,
-- and the longest lease that it is for. For a lease of that length, or a shorter one, it lasts half
-- as long as the lease.
CREATE FUNCTION {schema}.waits_for_renewals(OUT begun_at timestamptz, OUT lease interval)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT to_timestamp((w.value >> 21) / 1000.0::float8), make_interval(secs => w.value & 2097151)
    FROM (SELECT last_value FROM {schema}.patience
          UNION ALL SELECT last_value FROM {schema}.longer_patience) w (value)
$$;

-- Until when ended leases of this length stay claimed: NULL if they do not, 'infinity' if a wait
-- has to begin. If no node has renewed for two thirds of one, the cause is the server (its clock
-- was set, ready was locked). Then the nodes have half a lease for a renewal, which is due each
-- third. A wait that ended long ago does not count: the clock may have been set since, beyond its
-- end.
CREATE FUNCTION {schema}.renewals_awaited_until(p_lease interval) RETURNS timestamptz
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    present timestamptz;
    latest timestamptz;
    length interval;
    ends timestamptz;
BEGIN
    -- A renewal at a future time shows that the clock was set back.
    SELECT coalesce(p_lease, max(n.lease)),
        CASE WHEN bool_or(n.renewed_at > clock_timestamp()) THEN '-infinity'
             ELSE max(n.renewed_at) END
    INTO length, latest FROM {schema}.node n;
    present := clock_timestamp();
    SELECT max(w.begun_at) + length / 2 INTO ends
    FROM {schema}.waits_for_renewals() w
    WHERE w.begun_at <= present AND w.lease >= least(length, '2097151 s');
    RETURN CASE
        WHEN latest IS NULL THEN NULL
        WHEN ends > present THEN ends
        WHEN latest >= present - length * (2 / 3.0::float8) THEN NULL
        WHEN ends BETWEEN latest AND present AND ends > present - greatest(length, '10 s')
            THEN NULL
        ELSE 'infinity' END;
END
$$;

-- Begins a wait for renewals if there is a reason; returns whether one lasts, in which ended
-- leases of this length stay claimed. If it interrupts two longer waits, the longest goes on as it
-- is, and this one takes the other's length: so none is prolonged once the longest is forgotten.
-- Writes no table: in a long transaction that would keep the nodes from renewing.
CREATE FUNCTION {schema}.begin_wait_for_renewals(p_lease interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ends timestamptz := {schema}.renewals_awaited_until(p_lease);
    present timestamptz := clock_timestamp();
    length interval := coalesce(p_lease, (SELECT max(n.lease) FROM {schema}.node n));
    longer record;
    joined interval;
BEGIN
    IF ends = 'infinity' THEN
        SELECT w.begun_at, w.lease INTO longer FROM {schema}.waits_for_renewals() w
        WHERE w.lease > length AND w.begun_at <= present
            AND w.begun_at + w.lease / 2 > present - greatest(w.lease, '10 s')
        ORDER BY w.lease DESC, w.begun_at DESC LIMIT 1;
        SELECT min(w.lease) INTO joined FROM {schema}.waits_for_renewals() w
        WHERE w.lease > length AND w.lease < longer.lease AND w.begun_at <= present
            AND w.begun_at + w.lease / 2 > present;
        IF longer.lease IS NOT NULL THEN
            PERFORM setval('{schema}.longer_patience',
                {schema}.wait_value(longer.begun_at, longer.lease));
        END IF;
        PERFORM setval('{schema}.patience',
            {schema}.wait_value(present, coalesce(joined, length)));
    END IF;
    RETURN ends IS NOT NULL;
END
$$;

-- Whether the time of a lease is over. So is one that ends later than its claimer asks for: the
-- clock was set back, and the claimer has not renewed since.
CREATE FUNCTION {schema}.lease_time_is_over(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    RETURN p_lease_until <= present OR EXISTS (
        SELECT FROM {schema}.incarnation i
        WHERE i.id = p_claimer AND p_lease_until > present + i.lease + i.lease / 3);
END
$$;

-- Whether a row has no claim, or one whose lease has ended; may begin a wait for renewals.
CREATE FUNCTION {schema}.is_claimable(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN p_lease_until IS NULL OR {schema}.lease_time_is_over(p_claimer, p_lease_until)
        AND NOT {schema}.begin_wait_for_renewals(
            (SELECT i.lease FROM {schema}.incarnation i WHERE i.id = p_claimer));
END
$$;

-- The same for statements that only read.
CREATE FUNCTION {schema}.is_waiting(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
    RETURN p_lease_until IS NULL OR {schema}.lease_time_is_over(p_claimer, p_lease_until)
        AND {schema}.renewals_awaited_until(
            (SELECT i.lease FROM {schema}.incarnation i WHERE i.id = p_claimer)) IS NULL;
END
$$;

-- The number of leading rows whose unpacked payloads together hold at most p_bytes; called by
-- claim, which has locked the rows.
CREATE FUNCTION {schema}.fitting(p_ctids tid[], p_bytes bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    taken bigint := 0;
BEGIN
    FOR place IN 1..cardinality(p_ctids) LOOP
        taken := taken + (
            SELECT CASE WHEN pg_column_compression(r.data) IS NULL THEN pg_column_size(r.data)
                        ELSE octet_length(r.data::text) END
            FROM {schema}.ready r WHERE r.ctid = p_ctids[place]);
        IF taken > p_bytes THEN
            RETURN place - 1;
        END IF;
    END LOOP;
    RETURN cardinality(p_ctids);
END
$$;

-- Claims up to p_count commands; called by a leader's round trip. Locks the rows that it picks
-- and skips locked ones. Takes the first (domain, priority) that has any, then the next, each
-- in the order of ids above its floor; with p_below, and if there is nothing above the floors,
-- below them. It stops before the payloads exceed p_bytes together, but claims the first
-- p_least whatever they hold. A row that its last claimer neither settled nor released counts a
-- loss; rows with more than p_most_losses are left to the quarantine process.
--
-- The lease test is in the WHERE clause of SKIP LOCKED, so that it is repeated on the row's latest
-- version, after that is locked. Where another session has claimed the row since the snapshot, it
-- fails, and the owner's settlement waits for the lock until this transaction ends (with 40
-- processes 436 waits of 70 ms in 40,000 commands). So no row is locked whose xmax, which is read
-- as it is now, is that of another transaction that was running when the snapshot was taken, or is
-- newer. The number of a multixact may look newer, but not for longer than 100,000 transactions.
--
-- The size of a packed payload outside its row is estimated at the most that lz4 can pack (255
-- bytes into one), and only if that is too much does fitting unpack it.
--
-- The last row has no token and is no claim. It shows how far the claim has read: in every
-- (domain, priority) before its own, or in all if it has none, no claimable row is left of the
-- ids up to its id, except rows that others were inserting or had locked. Its column
-- waited is the number of pages read: one more column would be sent, as NULL, with each claim.
CREATE FUNCTION {schema}.claim(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_below boolean, p_types text[],
    p_count integer, p_least integer, p_bytes bigint, p_most_losses smallint, p_claimer bigint,
    p_lease interval
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    lows bigint[] := p_floors;
    highs bigint[] := array_fill(9223372036854775807, ARRAY[cardinality(p_floors)]);
    ctids tid[];
    weight bigint;
    any_lost boolean;
    own xid := pg_current_xact_id_if_assigned()::xid;
    fit integer := 0;
    pages bigint := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass);
    -- Before the rows are read: a row that is committed later may have a lower id.
    -- (A function is quicker than a query of the sequence; NULL is one without any value.)
    seen_to bigint := coalesce(pg_sequence_last_value('{schema}.ready_id_seq'::regclass), 0);
    last {schema}.claimed;
    present timestamptz := clock_timestamp();
    -- The latest end of a lease that is as long as this one.
    latest_end timestamptz := present + p_lease + p_lease / 3;
BEGIN
    IF p_count = 0 THEN
        RETURN;
    END IF;
    LOOP
        SELECT array_agg(p.ctid), sum(p.bytes), bool_or(p.was_claimed)
        INTO ctids, weight, any_lost
        FROM (
            SELECT c.ctid, c.bytes, c.was_claimed
            FROM unnest(p_domains, p_priorities, lows, highs) q (domain, priority, low, high),
                LATERAL (
                    SELECT r.ctid,
                        CASE WHEN pg_column_compression(r.data) IS NULL
                             THEN pg_column_size(r.data)
                             WHEN pg_column_size(r.data) < 2048 THEN octet_length(r.data::text)
                             ELSE pg_column_size(r.data) * 255::bigint END AS bytes,
                        r.claimer IS NOT NULL AS was_claimed
                    FROM {schema}.ready r
                    WHERE r.domain = q.domain AND r.priority = q.priority
                        AND r.id > q.low AND r.id <= q.high
                        AND (r.xmax = '0'::xid OR r.xmax = own
                             OR r.xmax <> ALL (ARRAY(
                                 SELECT x::xid FROM pg_snapshot_xip(pg_current_snapshot()) x))
                             AND age(r.xmax) NOT BETWEEN
                                 (SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid) - 100000)
                                 AND (SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid)))
                        AND (r.lease_until IS NULL
                             OR r.lease_until NOT BETWEEN present AND latest_end
                             AND {schema}.is_claimable(r.claimer, r.lease_until))
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
        EXIT WHEN ctids IS NOT NULL OR NOT p_below OR highs = p_floors OR 0 = ALL (p_floors);
        lows := array_fill(0::bigint, ARRAY[cardinality(p_floors)]);
        highs := p_floors;
    END LOOP;
    last.id := seen_to;
    last.waited := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass) - pages;
    IF ctids IS NULL THEN
        RETURN NEXT last;
        RETURN;
    END IF;
    fit := cardinality(ctids);
    IF weight > p_bytes THEN
        fit := greatest(p_least, {schema}.fitting(ctids, p_bytes));
    END IF;
    IF NOT EXISTS (
        SELECT FROM {schema}.lease l
        WHERE l.claimer = p_claimer AND l.ends_at BETWEEN present AND present + p_lease)
    THEN
        PERFORM {schema}.note_lease(p_claimer, p_lease);
    END IF;
    IF any_lost THEN
        PERFORM {schema}.note_lost(ctids[:fit]);
    END IF;
    IF fit < cardinality(ctids) OR fit = p_count THEN
        SELECT r.domain, r.priority INTO last.domain, last.priority
        FROM {schema}.ready r WHERE r.ctid = ctids[least(fit + 1, cardinality(ctids))];
    END IF;
    RETURN QUERY
    UPDATE {schema}.ready r SET
        token = r.token + 1,
        losses = r.losses + (r.claimer IS NOT NULL)::integer,
        claimer = p_claimer,
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + p_lease
    FROM unnest(ctids[:fit]) p (ctid)
    WHERE r.ctid = p.ctid
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        r.reply_to::text, {schema}.finite(r.created_at),
        extract(epoch FROM clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision, r.batch_id,
        r.caller, r.ctid;
    RETURN NEXT last;
END
$$;

-- Writes an event for each of these rows whose claim was lost because its lease ended; called
-- by claims, which have locked the rows.
CREATE FUNCTION {schema}.note_lost(p_ctids tid[]) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.event (
        claimer, claimed_at, token, command_id, attempt, domain, kind, code, message)
    SELECT r.claimer, r.claimed_at, r.token, r.command_id, r.attempts, r.domain, 'LOST',
        'LEASE_ENDED', 'its lease ended, because its worker or its node was gone'
    FROM unnest(p_ctids) p (ctid) JOIN {schema}.ready r ON r.ctid = p.ctid
    WHERE r.claimer IS NOT NULL
$$;

-- Notes when the leases of a claimer end; called by claims. Locks the claimer's own row.
CREATE FUNCTION {schema}.note_lease(p_claimer bigint, p_lease interval) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.lease AS l VALUES (p_claimer, p_lease, clock_timestamp() + p_lease)
    ON CONFLICT (claimer) DO UPDATE SET length = EXCLUDED.length, ends_at = EXCLUDED.ends_at
    WHERE l.ends_at NOT BETWEEN clock_timestamp() AND EXCLUDED.ends_at
$$;

-- Seconds, or fewer, until the next lease ends on a command of these domains and types; NULL if
-- none will. Called by stewards that wait; their own living claimers, p_own, have a result of their
-- own. Reads all of ready only if a claimer may have died: it has no lease that is sure to end
-- later. Locks nothing.
CREATE FUNCTION {schema}.next_lease_ends(
    p_domains text[], p_types text[], p_own bigint[],
    OUT others double precision, OUT own double precision)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    next_end timestamptz;
    own_end timestamptz;
    any_unsure boolean;
BEGIN
    SELECT min(l.ends_at) FILTER (WHERE s.is_sure AND NOT s.is_own),
        min(l.ends_at) FILTER (WHERE s.is_sure AND s.is_own),
        bool_or(NOT s.is_sure)
    INTO next_end, own_end, any_unsure
    FROM {schema}.lease l, LATERAL (
        SELECT l.ends_at BETWEEN present AND present + l.length AS is_sure,
            l.claimer = ANY (p_own) AS is_own) s;
    IF any_unsure THEN
        SELECT least(next_end, min(r.lease_until)) INTO next_end
        FROM {schema}.ready r
        WHERE r.lease_until IS NOT NULL AND r.domain = ANY (p_domains)
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND NOT EXISTS (
                SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused);
    END IF;
    others := extract(epoch FROM next_end - clock_timestamp());
    own := extract(epoch FROM own_end - clock_timestamp());
END
$$;

-- Whether a suspect waits: a command with p_losses or more. Called by stewards and workers.
CREATE FUNCTION {schema}.suspect_waits(p_types text[], p_losses smallint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.ready r
        WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND {schema}.is_claimable(r.claimer, r.lease_until)
            AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused))
$$;

-- Claims a row that its caller, claim_suspect or claim_row, has locked.
CREATE FUNCTION {schema}.claim_locked(p_ctid tid, p_claimer bigint, p_lease interval)
RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.note_lost(ARRAY[p_ctid]), {schema}.note_lease(p_claimer, p_lease);
    RETURN QUERY
    UPDATE {schema}.ready r SET
        token = r.token + 1,
        losses = r.losses + (r.claimer IS NOT NULL)::integer,
        claimer = p_claimer,
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + p_lease
    WHERE r.ctid = p_ctid
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        r.reply_to::text, {schema}.finite(r.created_at),
        extract(epoch FROM clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision, r.batch_id,
        r.caller, r.ctid;
END
$$;

-- Claims the first suspect; called by the quarantine process. Locks one row and skips locked
-- ones.
CREATE FUNCTION {schema}.claim_suspect(
    p_domains text[], p_types text[], p_losses smallint, p_claimer bigint, p_lease interval
) RETURNS SETOF {schema}.claimed
LANGUAGE sql VOLATILE
AS $$
    WITH picked AS MATERIALIZED (
        SELECT r.ctid FROM {schema}.ready r
        WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
            AND r.domain = ANY (p_domains)
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND {schema}.is_claimable(r.claimer, r.lease_until)
            AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused)
        ORDER BY r.id
        LIMIT 1
        FOR UPDATE OF r SKIP LOCKED
    )
    SELECT c.* FROM picked p, LATERAL {schema}.claim_locked(p.ctid, p_claimer, p_lease) c
$$;

-- Claims one row by its key; called where a claim of many has failed. Skips a locked row.
CREATE FUNCTION {schema}.claim_row(
    p_domain text, p_priority smallint, p_id bigint, p_token bigint, p_command_id uuid,
    p_claimer bigint, p_lease interval
) RETURNS SETOF {schema}.claimed
LANGUAGE sql VOLATILE
AS $$
    WITH picked AS MATERIALIZED (
        SELECT r.ctid FROM {schema}.ready r
        WHERE r.domain = p_domain AND r.priority = p_priority AND r.id = p_id
            AND r.token = p_token AND r.command_id = p_command_id
            AND {schema}.is_claimable(r.claimer, r.lease_until)
        FOR UPDATE SKIP LOCKED
    )
    SELECT c.* FROM picked p, LATERAL {schema}.claim_locked(p.ctid, p_claimer, p_lease) c
$$;

-- Renews the leases of a node's claims, or shows with none that the node could; called by
-- stewards. Returns the positions of lost claims. Finds rows by ready_command, as a claim on the
-- board may have no domain, and skips locked ones, which are being settled or lost.
CREATE FUNCTION {schema}.renew(
    p_command_ids uuid[], p_ids bigint[], p_tokens bigint[], p_claimers bigint[],
    p_node bigint, p_lease interval, p_types text[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.begin_wait_for_renewals(n.lease)
    FROM (SELECT DISTINCT lease FROM {schema}.node ORDER BY lease DESC) n;
    -- A future time is from before the clock was set back.
    UPDATE {schema}.node SET renewed_at = '-infinity'
    WHERE id IN (
        SELECT n.id FROM {schema}.node n WHERE n.renewed_at > clock_timestamp()
        FOR UPDATE SKIP LOCKED);
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
    UPDATE {schema}.lease l SET ends_at = clock_timestamp() + l.length
    FROM (SELECT k.claimer FROM {schema}.lease k WHERE k.claimer = ANY (p_claimers)
          FOR NO KEY UPDATE SKIP LOCKED) held
    WHERE l.claimer = held.claimer;
    INSERT INTO {schema}.node AS n (id, lease, renewed_at, types)
    VALUES (p_node, p_lease, clock_timestamp(), p_types)
    -- An unchanged array is kept as it is: a long one is stored out of line.
    ON CONFLICT (id) DO UPDATE SET lease = EXCLUDED.lease, renewed_at = EXCLUDED.renewed_at,
        types = CASE WHEN n.types = EXCLUDED.types THEN n.types ELSE EXCLUDED.types END;
    DELETE FROM {schema}.node
    WHERE id IN (
        SELECT n.id FROM {schema}.node n
        WHERE n.renewed_at < clock_timestamp() - 10 * n.lease
            -- A node that waits renews nothing; readers of replies look for its types.
            AND NOT EXISTS (SELECT FROM {schema}.waiter w
                            WHERE w.node = n.id AND w.armed_until > clock_timestamp())
            AND NOT {schema}.begin_wait_for_renewals(n.lease)
        FOR UPDATE SKIP LOCKED);
    RETURN ARRAY(
        SELECT k.position
        FROM unnest(p_command_ids, p_ids, p_tokens, p_claimers)
            WITH ORDINALITY k (command_id, id, token, claimer, position)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.ready r
            WHERE r.command_id = k.command_id AND r.id = k.id AND r.token = k.token
                AND r.claimer = k.claimer));
END
$$;

-- Releases claims of p_claimer, uncharged; called by workers, and by stewards for dead ones.
-- p_losses has NULL for a command that had not begun, else the losses to count, with an event of
-- p_why. A loss of 0 is accepted only with the p_reason STOPPED (its worker was ordered to) or
-- DATABASE_AWAY. Returns the positions of the released claims. Skips locked rows.
CREATE FUNCTION {schema}.release(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_losses smallint[], p_reason text, p_why text
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
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
    WITH held AS MATERIALIZED (
        SELECT r.domain, r.priority, r.id, r.token, r.claimer, r.claimed_at, k.losses,
            k.position
        FROM {schema}.ready r
        JOIN unnest(p_domains, p_priorities, p_ids, p_tokens, p_command_ids, p_losses)
            WITH ORDINALITY k (domain, priority, id, token, command_id, losses, position)
            ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id
            AND r.token = k.token AND r.claimer = p_claimer
            AND r.command_id IS NOT DISTINCT FROM k.command_id
        FOR UPDATE OF r SKIP LOCKED
    ), back AS (
        UPDATE {schema}.ready r SET
            token = r.token + 1, losses = r.losses + coalesce(o.losses, 0), claimer = NULL,
            lease_until = NULL
        FROM held o
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
        RETURNING o.position, r.domain, r.command_id, r.attempts, o.losses, o.token, o.claimer,
            o.claimed_at
    ), events AS (
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message)
        SELECT claimer, claimed_at, token, command_id, attempts, domain, 'LOST',
            CASE losses WHEN 0 THEN p_reason ELSE 'LOST' END, p_why
        FROM back WHERE losses IS NOT NULL
    )
    SELECT array_agg(position) INTO given FROM back;
    PERFORM {schema}.wake(d) FROM (SELECT DISTINCT unnest(p_domains) d) domains;
    RETURN coalesce(given, '{}');
END
$$;

-- Whether a node that renews leases has a handler of this type.
CREATE FUNCTION {schema}.is_handled(p_domain text, p_type text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.node n
        WHERE n.renewed_at > clock_timestamp() - n.lease
            AND (p_domain || ' ' || p_type) = ANY (n.types))
$$;
