-- How workers take commands: any, and suspects, which were lost too often to run with others.
-- All functions that workers call have planner settings, so that no plan depends on statistics:
-- right after a burst these still say "empty", and a claim that sorts the backlog falls from
-- 80,000 commands a second to 2,000.

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
-- nothing above the floors, from below them. It stops before the payloads exceed p_bytes together,
-- but claims the first p_least whatever they hold. A row that its last claimer neither settled
-- nor released counts a loss; rows with more than p_most_losses are left to the process that
-- runs suspects. The lease test is in the WHERE clause of SKIP LOCKED, so that it is repeated on
-- the row's latest version.
--
-- A payload that is not packed has the size of its column. A packed one that lies in its row is
-- unpacked for it, which is quick; of one that lies outside the most is taken that it could be
-- (lz4 packs 255 bytes into one), and only if there is too much of that, `fitting` looks closer.
--
-- The last row has no token and is no claim. It says how far the claim has read: in every
-- (domain, priority) before its own, or in all if it has none, nothing that could be claimed is
-- left of the ids up to its id, but for rows that others were inserting or had locked; and
-- `waited` is the number of pages that were read. So the next claim need not walk over them.
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

-- Whether a suspect waits: a command with p_losses or more. By the small index of what was lost
-- at all.
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

-- Claims the first suspect: a command with p_losses or more.
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
