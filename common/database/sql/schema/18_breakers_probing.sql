-- Probes: the calls that a breaker lets through after its cooldown, and the places that they hold.
-- Called by workers while a breaker is OPEN or HALF_OPEN, and by stewards.

-- Places for probes that are free; removes the rows of those that are not held any longer. A row of
-- ready that has gone was settled: its call is about to be reported.
CREATE FUNCTION {schema}.count_free_probes(p_name text, p_probes integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM {schema}.breaker_probe p
    WHERE p.breaker = p_name AND coalesce(
        (SELECT r.token <> p.token OR r.claimer IS DISTINCT FROM p.claimer
             OR {schema}.is_claimable(r.claimer, r.lease_until)
         FROM {schema}.ready r
         WHERE r.domain = p.domain AND r.priority = p.priority AND r.id = p.ready_id),
        p.held_until <= clock_timestamp());
    RETURN greatest(0, p_probes - (
        SELECT count(*) FROM {schema}.breaker_probe p WHERE p.breaker = p_name)::integer);
END
$$;

-- Locks a breaker until the transaction ends, and returns how many probes it lets through now; NULL
-- if another session has locked it, if it is CLOSED, or if it is too early.
CREATE FUNCTION {schema}.lock_probes(p_name text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    most integer;
BEGIN
    SELECT b.probes INTO most FROM {schema}.breaker b
    WHERE b.name = p_name AND b.state <> 'CLOSED' AND b.retry_at <= clock_timestamp()
    FOR UPDATE SKIP LOCKED;
    RETURN CASE WHEN FOUND THEN {schema}.count_free_probes(p_name, most) END;
END
$$;

-- Lets these claims through as probes, and returns their ids; called after lock_probes in the same
-- transaction. A claim that is settled, and whose end is not reported, holds its place for
-- p_seconds from now at most.
CREATE FUNCTION {schema}.note_probes(
    p_name text, p_claimer bigint, p_domains text[], p_priorities smallint[], p_ids bigint[],
    p_tokens bigint[], p_seconds double precision[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    probe_ids bigint[];
    opened {schema}.breaker;
BEGIN
    WITH noted AS (
        INSERT INTO {schema}.breaker_probe (
            breaker, claimer, domain, priority, ready_id, token, held_until)
        SELECT p_name, p_claimer, c.domain, c.priority, c.id, c.token,
            clock_timestamp() + make_interval(secs => c.seconds)
        FROM unnest(p_domains, p_priorities, p_ids, p_tokens, p_seconds)
            WITH ORDINALITY c (domain, priority, id, token, seconds, ordinal)
        ORDER BY c.ordinal
        RETURNING id)
    SELECT array_agg(id ORDER BY id) INTO probe_ids FROM noted;
    UPDATE {schema}.breaker b SET state = 'HALF_OPEN', changed_at = clock_timestamp()
    WHERE b.name = p_name AND b.state = 'OPEN'
    RETURNING b.* INTO opened;
    IF FOUND THEN
        PERFORM {schema}.announce_breaker(opened, false),
            {schema}.note_breaker(p_name, 'HALF_OPENED');
    END IF;
    RETURN probe_ids;
END
$$;

-- Lets one call of this claim through as a probe, and returns its id; NULL: it is not let
-- through.
CREATE FUNCTION {schema}.take_probe(
    p_name text, p_claimer bigint, p_domain text, p_priority smallint, p_id bigint, p_token bigint,
    p_seconds double precision
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    IF coalesce({schema}.lock_probes(p_name), 0) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN ({schema}.note_probes(
        p_name, p_claimer, ARRAY[p_domain], ARRAY[p_priority], ARRAY[p_id], ARRAY[p_token],
        ARRAY[p_seconds]))[1];
END
$$;

-- Gives back the places of a process that ends, or is dead; called by that, or by stewards before
-- they release its claims. Until p_seconds have passed, or a cooldown if that is shorter, no other
-- call is let through: a command whose call ends its process would else repeat it at once.
CREATE FUNCTION {schema}.give_back_probes(p_claimer bigint, p_seconds double precision) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    names text[] := ARRAY(
        SELECT p.breaker FROM {schema}.breaker_probe p WHERE p.claimer = p_claimer);
BEGIN
    -- As others do: the breaker first, in the order of names.
    PERFORM FROM {schema}.breaker b WHERE b.name = ANY (names) ORDER BY b.name FOR UPDATE;
    DELETE FROM {schema}.breaker_probe p WHERE p.claimer = p_claimer;
    UPDATE {schema}.breaker b SET retry_at = greatest(
        b.retry_at, clock_timestamp() + make_interval(secs => least(p_seconds, b.cooldown_seconds)))
    WHERE b.name = ANY (names) AND b.state = 'HALF_OPEN';
    PERFORM {schema}.announce_breaker(b, true) FROM {schema}.breaker b WHERE b.name = ANY (names);
END
$$;

-- Seconds until a breaker lets probes through whose types a suspect waits for, after p_after; see
-- suspect_waits.
CREATE FUNCTION {schema}.next_suspect_probe(
    p_types text[], p_losses smallint, p_priorities smallint[], p_after timestamptz
) RETURNS double precision
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (
        SELECT extract(epoch FROM min(b.retry_at) - clock_timestamp())
        FROM {schema}.breaker b
        WHERE b.state <> 'CLOSED' AND b.retry_at > p_after
            AND {schema}.suspect_waits(
                ARRAY(SELECT c FROM unnest(b.covers) c WHERE c = ANY (p_types)),
                p_losses, p_priorities));
END
$$;

-- The places that probes of a breaker hold, as count_free_probes counts them.
CREATE FUNCTION {schema}.count_held_probes(p_name text) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT count(*) FROM {schema}.breaker_probe p
    WHERE p.breaker = p_name AND coalesce(
        (SELECT r.token = p.token AND r.claimer IS NOT DISTINCT FROM p.claimer
             AND NOT {schema}.is_waiting(r.claimer, r.lease_until)
         FROM {schema}.ready r
         WHERE r.domain = p.domain AND r.priority = p.priority AND r.id = p.ready_id),
        p.held_until > clock_timestamp())
$$;

-- Those of these types, given as 'domain type', whose breakers let a command start now.
CREATE FUNCTION {schema}.let_through(p_types text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    withheld text[];
BEGIN
    SELECT array_agg(c) INTO withheld
    FROM {schema}.breaker b, unnest(b.covers) c
    WHERE b.state <> 'CLOSED' AND NOT coalesce(
        b.retry_at <= clock_timestamp() AND b.probes > {schema}.count_held_probes(b.name), false);
    IF withheld IS NULL THEN
        RETURN p_types;
    END IF;
    RETURN ARRAY(SELECT t FROM unnest(p_types) t WHERE t <> ALL (withheld));
END
$$;
