-- Until when a claim holds its command: whether it has ended, its renewal, and its release.

-- The fence. Settling, releasing and renewing match the command and the claimer as well as the
-- key and the token: a server that was restored to an earlier point gives ids and tokens
-- again, to other commands. (IS NOT DISTINCT FROM is = to which no index can answer: a plan
-- by ready_command would find the same rows in random order.)

-- The nearest time that Python's datetime can hold in every time zone, and from which an age
-- can be computed.
CREATE FUNCTION {schema}.finite(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(greatest(p_time, '0002-01-01 00:00+00'::timestamptz),
             '9998-12-31 00:00+00'::timestamptz);

-- Until when ended leases are left alone, NULL if they are not, 'infinity' if a wait has to
-- begin: when none of the nodes has renewed for two thirds of a lease, the cause is the server
-- (its clock was set, ready was locked), and not the nodes. They get half a lease, from the
-- first call of waits_for_renewals that finds this, for a renewal, which comes each third; a
-- node that has not renewed by then is gone. Writes nothing.
CREATE FUNCTION {schema}.renewals_awaited_until() RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present timestamptz;
    latest timestamptz;
    longest interval;
    set_back boolean;
    ends timestamptz;
BEGIN
    -- A renewal at a time to come is from before the clock was set back. Until a node renews,
    -- which removes it, a wait that ended before the latest lease may be from then, too.
    SELECT coalesce(max(n.renewed_at) FILTER (WHERE n.renewed_at <= clock_timestamp()),
                    '-infinity'), max(n.lease), bool_or(n.renewed_at > clock_timestamp())
    INTO latest, longest, set_back FROM {schema}.node n;
    SELECT to_timestamp(last_value / 1000000.0::float8) INTO ends FROM {schema}.patience;
    present := clock_timestamp();
    RETURN CASE
        WHEN longest IS NULL THEN NULL
        WHEN ends > present AND ends <= present + longest / 2 THEN ends
        WHEN latest >= present - longest * (2 / 3.0::float8) THEN NULL
        WHEN ends BETWEEN latest AND present AND (NOT set_back OR ends > present - longest)
            THEN NULL
        ELSE 'infinity' END;
END
$$;

-- Whether ended leases are left alone for now. Each takeover of an ended lease, each renewal
-- and each statement of an operator that takes what waits calls this first. It writes no table:
-- in a long transaction that would keep the nodes from renewing.
CREATE FUNCTION {schema}.waits_for_renewals() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ends timestamptz := {schema}.renewals_awaited_until();
BEGIN
    IF ends = 'infinity' THEN
        PERFORM setval('{schema}.patience',
            (SELECT extract(epoch FROM clock_timestamp() + max(n.lease) / 2) * 1000000::numeric
             FROM {schema}.node n)::bigint);
    END IF;
    RETURN ends IS NOT NULL;
END
$$;

-- Whether the time of a lease is over. One further ahead than its claimer ever asks for, and a
-- renewal, is: the clock was set back, and the claimer has not renewed since.
CREATE FUNCTION {schema}.lease_time_is_over(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    RETURN p_lease_until <= present OR EXISTS (
        SELECT FROM {schema}.incarnation i
        WHERE i.id = p_claimer AND p_lease_until > present + i.lease + i.lease / 3);
END
$$;

-- Whether a claim's lease has ended, so that its command can be taken from the claimer.
CREATE FUNCTION {schema}.lease_is_over(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN {schema}.lease_time_is_over(p_claimer, p_lease_until)
        AND NOT {schema}.waits_for_renewals();
END
$$;

-- Whether a row of ready waits, as lease_is_over says, for statements that only read.
CREATE FUNCTION {schema}.is_waiting(p_claimer bigint, p_lease_until timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN p_lease_until IS NULL OR {schema}.lease_time_is_over(p_claimer, p_lease_until)
        AND {schema}.renewals_awaited_until() IS NULL;
END
$$;

-- Renews the leases of a node's claims, or shows with none that the node could; returns the
-- positions of claims that their claimers have lost. By ready_command: a key on the board may have
-- no domain. A locked row is being settled, or its claim is being lost: it is skipped,
-- without waiting.
CREATE FUNCTION {schema}.renew(
    p_command_ids uuid[], p_ids bigint[], p_tokens bigint[], p_claimers bigint[],
    p_node bigint, p_lease interval, p_types text[]
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
    -- A time to come is from before the clock was set back: it would never be the past.
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
    INSERT INTO {schema}.node AS n (id, lease, renewed_at, types)
    VALUES (p_node, p_lease, clock_timestamp(), p_types)
    -- The types as they are, unless they have changed: a long array is stored elsewhere.
    ON CONFLICT (id) DO UPDATE SET lease = EXCLUDED.lease, renewed_at = EXCLUDED.renewed_at,
        types = CASE WHEN n.types = EXCLUDED.types THEN n.types ELSE EXCLUDED.types END;
    DELETE FROM {schema}.node
    WHERE id IN (
        SELECT n.id FROM {schema}.node n
        WHERE n.renewed_at < clock_timestamp() - 10 * n.lease AND NOT {schema}.waits_for_renewals()
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

-- Whether a node that renews leases has a handler of this type.
CREATE FUNCTION {schema}.is_handled(p_domain text, p_type text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.node n
        WHERE n.renewed_at > clock_timestamp() - n.lease
            AND (p_domain || ' ' || p_type) = ANY (n.types))
$$;

-- Releases claims of p_claimer, uncharged; a key whose token has moved on belongs to another
-- claim. p_losses has NULL for a command that had not begun, else the losses that it counts,
-- and leaves an event with p_why. An execution that has begun never ends without a trace: a loss
-- of 0 is accepted only with a p_reason that is not the command's doing. Returns the
-- positions of what was released; rows that another session has locked are skipped.
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
        FROM ours o
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
