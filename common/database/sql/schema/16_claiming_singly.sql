-- Claims of single commands: of suspects, which run alone, and where a claim of many has failed.

-- Whether a suspect of a lane can have its place: no claim of others takes that while the suspect
-- is in ready, so that it is free once those that hold the others have ended.
CREATE FUNCTION {schema}.has_place(p_row {schema}.ready) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT coalesce((
        SELECT coalesce(f.concurrency, 2147483647) > (
                SELECT count(*) FROM {schema}.ready r
                WHERE r.domain = p_row.domain AND r.type = p_row.type
                    AND coalesce(r.key, '') = coalesce(p_row.key, '')
                    AND r.lane_position IS NOT NULL AND r.id <> p_row.id)
            AND NOT EXISTS (
                SELECT FROM {schema}.limit_in_force s
                WHERE s.name = ANY (m.shared) AND NOT s.per_node
                    AND {schema}.count_shared(s.name, s.concurrency + 1, NULL) > s.concurrency)
        FROM {schema}.limits_of(p_row.domain, p_row.type) m
        LEFT JOIN {schema}.limit_in_force f ON f.name = m.own), true)
$$;

-- Whether a suspect waits: a command with p_losses or more. Called by stewards and workers. The
-- first and the last of p_priorities bound it; NULL stands for all.
CREATE FUNCTION {schema}.suspect_waits(
    p_types text[], p_losses smallint, p_priorities smallint[]
) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.ready r
        WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND coalesce(r.priority BETWEEN p_priorities[1] AND p_priorities[2], true)
            AND {schema}.is_claimable(r.claimer, r.lease_until)
            AND (r.lane_position IS NULL OR {schema}.has_place(r))
            AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = r.domain AND d.paused))
$$;

-- Claims a row that its caller, claim_suspect or claim_row, has locked.
CREATE FUNCTION {schema}.claim_locked(p_ctid tid, p_claimer bigint, p_lease interval)
RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.note_lost(ARRAY[p_ctid]), {schema}.note_lease(p_claimer, p_lease);
    -- It does not wait for its rate, but counts in it.
    UPDATE {schema}.lane l SET next_start = {schema}.start_after(
        l.next_start, f.starts_per_second, f.burst, clock_timestamp(), 1)
    FROM {schema}.ready r, {schema}.limits_of(r.domain, r.type) m, {schema}.limit_in_force f
    WHERE r.ctid = p_ctid AND r.lane_position IS NOT NULL
        AND f.name = m.own AND f.starts_per_second IS NOT NULL
        AND l.domain = r.domain AND l.type = r.type AND l.key = coalesce(r.key, '');
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
        {schema}.reply_to_and_headers(r.reply_to, r.headers), {schema}.finite(r.created_at),
        extract(epoch FROM clock_timestamp()
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision, r.batch_id,
        r.caller, r.ctid;
END
$$;

-- Claims the first suspect; called by the quarantine process. Locks one row and skips locked
-- ones.
CREATE FUNCTION {schema}.claim_suspect(
    p_domains text[], p_types text[], p_losses smallint, p_priorities smallint[],
    p_claimer bigint, p_lease interval
) RETURNS SETOF {schema}.claimed
LANGUAGE sql VOLATILE
AS $$
    WITH picked AS MATERIALIZED (
        SELECT r.ctid FROM {schema}.ready r
        WHERE r.losses > 0 AND r.losses + (r.claimer IS NOT NULL)::integer >= p_losses
            AND r.domain = ANY (p_domains)
            AND (r.domain || ' ' || r.type) = ANY (p_types)
            AND coalesce(r.priority BETWEEN p_priorities[1] AND p_priorities[2], true)
            AND {schema}.is_claimable(r.claimer, r.lease_until)
            AND (r.lane_position IS NULL OR {schema}.has_place(r))
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
            AND {schema}.has_not_expired(r.expires_at, r.claimed_at, clock_timestamp())
        FOR UPDATE SKIP LOCKED
    )
    SELECT c.* FROM picked p, LATERAL {schema}.claim_locked(p.ctid, p_claimer, p_lease) c
$$;
