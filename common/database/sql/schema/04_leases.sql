-- How long claims last: leases, their renewal and release, and how claims are kept where no node
-- could renew.
--
-- The fence: settling, releasing and renewing match the command and the claimer as well as the
-- key and the token, because a server that was restored to an earlier point gives ids and
-- tokens again, to other commands. (IS NOT DISTINCT FROM is an = that no index can answer: a
-- plan by ready_command would find the same rows in random order.)

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

-- Notes when the leases of a claimer end; called by claims. Locks the claimer's own row.
CREATE FUNCTION {schema}.note_lease(p_claimer bigint, p_lease interval) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.lease AS l VALUES (p_claimer, p_lease, clock_timestamp() + p_lease)
    ON CONFLICT (claimer) DO UPDATE SET length = EXCLUDED.length, ends_at = EXCLUDED.ends_at
    WHERE l.ends_at NOT BETWEEN clock_timestamp() AND EXCLUDED.ends_at
$$;

-- Seconds, or fewer, until the next lease ends on a command of these domains and types, and from
-- the first to the last of p_priorities, if these are given; NULL if none will. Called by stewards
-- that wait; their own living claimers, p_own, have a result of their own. Reads all of ready only
-- if a claimer may have died: it has no lease that is sure to end later. Locks nothing.
CREATE FUNCTION {schema}.next_lease_ends(
    p_domains text[], p_types text[], p_priorities smallint[], p_own bigint[],
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
            AND coalesce(r.priority BETWEEN p_priorities[1] AND p_priorities[2], true)
            AND NOT EXISTS (
                SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused);
    END IF;
    others := extract(epoch FROM next_end - clock_timestamp());
    own := extract(epoch FROM own_end - clock_timestamp());
END
$$;

-- Renews the leases of a node's claims, or shows with none that the node could; called by
-- stewards. Returns the positions of lost claims. Finds rows by ready_command, as a claim on the
-- board may have no domain, and skips locked ones, which are being settled or lost.
CREATE FUNCTION {schema}.renew(
    p_command_ids uuid[], p_ids bigint[], p_tokens bigint[], p_claimers bigint[],
    p_node bigint, p_lease interval, p_types text[], p_tags text[], p_priorities smallint[]
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
    INSERT INTO {schema}.node AS n (id, lease, renewed_at, types, tags, priorities)
    VALUES (p_node, p_lease, clock_timestamp(), p_types, p_tags, p_priorities)
    -- An unchanged array is kept as it is: a long one is stored out of line.
    ON CONFLICT (id) DO UPDATE SET lease = EXCLUDED.lease, renewed_at = EXCLUDED.renewed_at,
        tags = EXCLUDED.tags, priorities = EXCLUDED.priorities,
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
-- DATABASE_AWAY. A command that never began has no claimed_at afterwards: each execution that ended
-- without settling it has left an event. Returns the positions of the released claims. Skips locked
-- rows.
CREATE FUNCTION {schema}.release(
    p_domains text[], p_priorities smallint[], p_ids bigint[], p_tokens bigint[],
    p_command_ids uuid[], p_claimer bigint, p_losses smallint[], p_reason text, p_why text
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    given bigint[];
    in_lanes tid[];
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
            lease_until = NULL,
            claimed_at = CASE WHEN o.losses IS NOT NULL OR r.attempts > 0 OR r.losses > 0
                OR r.token > 1 AND EXISTS (
                    SELECT FROM {schema}.event e
                    WHERE e.domain = r.domain AND e.command_id = r.command_id
                        AND e.claimed_at IS NOT NULL)
                THEN r.claimed_at END
        FROM held o
        WHERE r.domain = o.domain AND r.priority = o.priority AND r.id = o.id
        RETURNING o.position, r.domain, r.command_id, r.attempts, o.losses, o.token, o.claimer,
            o.claimed_at, CASE WHEN r.lane_position IS NOT NULL AND r.losses < 2
                THEN r.ctid END AS in_lane
    ), events AS (
        INSERT INTO {schema}.event (
            claimer, claimed_at, token, command_id, attempt, domain, kind, code, message)
        SELECT claimer, claimed_at, token, command_id, attempts, domain, 'LOST',
            CASE losses WHEN 0 THEN p_reason ELSE 'LOST' END, p_why
        FROM back WHERE losses IS NOT NULL
    )
    SELECT array_agg(position), array_agg(in_lane) FILTER (WHERE in_lane IS NOT NULL)
    INTO given, in_lanes FROM back;
    IF in_lanes IS NOT NULL THEN
        -- Back into their lanes, as other types may wait for these places, but for suspects.
        PERFORM {schema}.move_into_lanes(ARRAY(
            SELECT r.ctid FROM {schema}.ready r
            WHERE r.ctid = ANY (in_lanes)
                AND EXISTS (SELECT FROM {schema}.limits_of(r.domain, r.type))));
    END IF;
    PERFORM {schema}.wake(d) FROM (SELECT DISTINCT unnest(p_domains) d) domains;
    RETURN coalesce(given, '{}');
END
$$;

-- Nodes that renew leases or wait for work: the types that they run, their tags, and the
-- priorities that they claim, as in node.
CREATE FUNCTION {schema}.living_nodes() RETURNS TABLE (
    types text[], tags text[], priorities smallint[])
LANGUAGE sql STABLE
AS $$
    SELECT n.types, n.tags, n.priorities FROM {schema}.node n
    WHERE n.renewed_at > clock_timestamp() - n.lease
        OR EXISTS (SELECT FROM {schema}.waiter w
                   WHERE w.node = n.id AND w.armed_until > clock_timestamp())
$$;

-- Whether a node that renews leases or waits for work runs commands of this type, and of this
-- priority if that is given; or moves them over a bridge.
CREATE FUNCTION {schema}.is_handled(
    p_domain text, p_type text, p_priority smallint DEFAULT NULL
) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.living_nodes() n
        WHERE (p_domain || ' ' || p_type) = ANY (n.types)
            AND coalesce(p_priority BETWEEN n.priorities[1] AND n.priorities[2], true)
            OR {schema}.is_bridged(p_domain, p_type))
$$;
