-- How workers claim commands.
--
-- The settings in function_settings.sql make plans independent of statistics, which right after
-- a burst still say "empty": a claim that sorts the backlog falls from 80,000 commands/s to 2,000.

-- The nearest time that Python's datetime can hold in every time zone.
CREATE FUNCTION {schema}.finite(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(greatest(p_time, '0002-01-01 00:00+00'::timestamptz),
             '9998-12-31 00:00+00'::timestamptz);

-- What a claim says of both in one column, which is NULL for nearly all: one more column would be
-- sent with each claim. With headers a space stands between them, and also before them alone: a
-- name has none.
CREATE FUNCTION {schema}.reply_to_and_headers(p_reply_to text, p_headers json) RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN p_headers IS NULL THEN p_reply_to
            ELSE coalesce(p_reply_to, '') || ' ' || p_headers::text END;

-- Whether a command may start by its expiry: one that has begun does not expire.
CREATE FUNCTION {schema}.has_not_expired(
    p_expires_at timestamptz, p_claimed_at timestamptz, p_now timestamptz
) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN p_expires_at IS NULL OR p_claimed_at IS NOT NULL OR p_expires_at > p_now;

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
-- waited is the number of pages read, and its column caller the number of changes of limits: one
-- more column would be sent, as NULL, with each claim.
--
-- Without p_claimer nothing is claimed: the rows move into their lanes (see 14_lanes.sql).
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
                        AND {schema}.has_not_expired(r.expires_at, r.claimed_at, present)
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
    last.caller := pg_sequence_last_value('{schema}.limits'::regclass);
    IF ctids IS NULL THEN
        RETURN NEXT last;
        RETURN;
    END IF;
    fit := cardinality(ctids);
    IF weight > p_bytes THEN
        fit := greatest(p_least, {schema}.fitting(ctids, p_bytes));
    END IF;
    IF p_claimer IS NOT NULL AND NOT EXISTS (
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
    IF p_claimer IS NULL THEN
        PERFORM {schema}.move_into_lanes(ctids[:fit]);
        RETURN NEXT last;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.ready r SET
        token = r.token + 1,
        losses = r.losses + (r.claimer IS NOT NULL)::integer,
        claimer = p_claimer,
        -- The time by which it had not expired.
        claimed_at = CASE WHEN r.expires_at IS NULL THEN clock_timestamp() ELSE present END,
        lease_until = clock_timestamp() + p_lease
    -- One scan for all. (A join with the positions begins a scan for each, and asks the system for
    -- the length of the table.)
    WHERE r.ctid = ANY (ctids[:fit])
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        {schema}.reply_to_and_headers(r.reply_to, r.headers), {schema}.finite(r.created_at),
        -- (As a number of extract that is converted, it takes 0.1 us more.)
        date_part('epoch', clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at))), r.batch_id, r.caller, r.ctid;
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
