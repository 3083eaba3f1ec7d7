-- Claims of the oldest commands, whatever their priority, for workers that give these a share.

-- Of these queues the lowest id above the floor that can be claimed, NULL if there is none, and the
-- number of their commands among the p_count lowest of all; the queue with the lowest id first.
CREATE FUNCTION {schema}.queues_by_age(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_types text[], p_count integer,
    p_most_losses smallint, p_lease interval,
    OUT domain text, OUT priority smallint, OUT floor bigint, OUT first bigint, OUT number integer
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    latest_end timestamptz := present + p_lease + p_lease / 3;
BEGIN
    RETURN QUERY
    SELECT f.domain, f.priority, f.floor, min(f.id) AS lowest,
        count(*) FILTER (WHERE f.id IS NOT NULL AND f.rank <= p_count)::integer
    FROM (
        SELECT q.domain, q.priority, q.floor, r.id, row_number() OVER (ORDER BY r.id) AS rank
        FROM unnest(p_domains, p_priorities, p_floors) q (domain, priority, floor)
        LEFT JOIN LATERAL (
            SELECT r.id FROM {schema}.ready r
            WHERE r.domain = q.domain AND r.priority = q.priority AND r.id > q.floor
                AND (r.lease_until IS NULL
                     OR r.lease_until NOT BETWEEN present AND latest_end)
                AND (r.domain || ' ' || r.type) = ANY (p_types)
                AND r.losses + (r.claimer IS NOT NULL)::integer <= p_most_losses
                AND {schema}.has_not_expired(r.expires_at, r.claimed_at, present)
            ORDER BY r.domain, r.priority, r.id
            LIMIT p_count) r ON true
        WHERE NOT EXISTS (
            SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
    ) f
    GROUP BY f.domain, f.priority, f.floor
    ORDER BY lowest;
END
$$;

-- Claims up to p_count commands with the lowest ids of all these queues, each above its floor, as
-- claim does in each queue; called by claim_with_oldest.
--
-- The last row is as that of claim, without a domain. Rows whose id is -3 come before it: in the
-- queue of their domain and priority a claim may begin above the number in their column caller, as
-- this one has found nothing up to there.
CREATE FUNCTION {schema}.claim_oldest(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_types text[], p_count integer,
    p_bytes bigint, p_most_losses smallint, p_claimer bigint, p_lease interval
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    queue record;
    claim {schema}.claimed;
    pages bigint := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass);
    seen_to bigint := coalesce(pg_sequence_last_value('{schema}.ready_id_seq'::regclass), 0);
    -- Ids that are read again, as their rows may be committed later; see floors.py.
    overlap constant integer := 1000;
    taken integer := 0;
    bytes bigint := p_bytes;
BEGIN
    FOR queue IN
        SELECT * FROM {schema}.queues_by_age(
            p_domains, p_priorities, p_floors, p_types, p_count, p_most_losses, p_lease)
    LOOP
        IF queue.number > 0 THEN
            FOR claim IN
                SELECT * FROM {schema}.claim(
                    ARRAY[queue.domain], ARRAY[queue.priority], ARRAY[queue.first - 1], false,
                    p_types, queue.number, (taken = 0)::integer, bytes, p_most_losses, p_claimer,
                    p_lease) c
                WHERE c.token IS NOT NULL
            LOOP
                taken := taken + 1;
                bytes := greatest(0, bytes - octet_length(claim.data));
                RETURN NEXT claim;
            END LOOP;
        END IF;
        queue.first := coalesce(queue.first - 1, seen_to - overlap);
        IF queue.first > queue.floor + overlap THEN
            claim := NULL;
            claim.domain := queue.domain;
            claim.priority := queue.priority;
            claim.id := -3;
            claim.caller := queue.first;
            RETURN NEXT claim;
        END IF;
    END LOOP;
    claim := NULL;
    claim.id := seen_to;
    claim.waited := pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass) - pages;
    claim.caller := pg_sequence_last_value('{schema}.limits'::regclass);
    RETURN NEXT claim;
END
$$;

-- Claims p_oldest commands by their age and, with what is left of p_free, by their priority; then
-- p_ahead of the quick types. The rows of the three claims are those of claim_with_lanes: a row
-- whose id is -2 comes before the second (3) and the third (4).
CREATE FUNCTION {schema}.claim_with_oldest(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_below boolean, p_types text[],
    p_free integer, p_bytes bigint, p_quick_floors bigint[], p_quick_types text[],
    p_ahead integer, p_bytes_ahead bigint, p_most_losses smallint, p_claimer bigint,
    p_lease interval, p_oldest integer, p_oldest_floors bigint[]
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    head {schema}.claimed;
    claim {schema}.claimed;
    taken integer := 0;
BEGIN
    FOR claim IN
        SELECT * FROM {schema}.claim_oldest(
            p_domains, p_priorities, p_oldest_floors, p_types, least(p_oldest, p_free), p_bytes,
            p_most_losses, p_claimer, p_lease)
    LOOP
        taken := taken + (claim.token IS NOT NULL)::integer;
        RETURN NEXT claim;
    END LOOP;
    head.id := -2;
    head.attempts := 3;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim(
        p_domains, p_priorities, p_floors, p_below, p_types, p_free - taken,
        (taken = 0)::integer, p_bytes, p_most_losses, p_claimer, p_lease);
    head.attempts := 4;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim(
        p_domains, p_priorities, p_quick_floors, false, p_quick_types, p_ahead, 0, p_bytes_ahead,
        p_most_losses, p_claimer, p_lease);
END
$$;
