-- Operators' cancels of all commands that wait in a domain and meet some conditions.

-- Cancels the scheduled commands that were sent before p_until and meet every condition that is
-- not NULL, a chunk at a time: those after p_command_id, at most p_count and p_bytes of stored
-- data, but at least one. Skips locked rows. The next chunk has those after command_id; NULL: none
-- is left.
CREATE FUNCTION {schema}.cancel_scheduled(
    p_domain text, p_type text, p_since timestamptz, p_until timestamptz,
    p_command_id uuid, p_count integer, p_bytes bigint, p_operator text, p_reason text,
    OUT canceled bigint, OUT command_id uuid
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT s.command_id, pg_column_size(s.data) AS bytes
        FROM {schema}.scheduled s
        WHERE s.domain = p_domain AND (p_command_id IS NULL OR s.command_id > p_command_id)
            AND (p_type IS NULL OR s.type = p_type)
            AND (p_since IS NULL OR s.created_at >= p_since)
            AND s.created_at < p_until
        ORDER BY s.domain, s.command_id
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.command_id, sum(p.bytes) OVER (ORDER BY p.command_id) - p.bytes AS bytes_before
        FROM picked p
    )
    SELECT array_agg(s.command_id ORDER BY s.command_id) INTO command_ids
    FROM summed s WHERE s.bytes_before < p_bytes;
    command_id := command_ids[cardinality(command_ids)];
    canceled := {schema}.cancel_ids(p_domain, command_ids, false, p_reason, p_operator, NULL);
END
$$;

-- The same for ready, in the order of claims, after (p_priority, p_id); called when nothing is
-- left in scheduled and limited.
CREATE FUNCTION {schema}.cancel_ready(
    p_domain text, p_type text, p_since timestamptz, p_until timestamptz,
    p_priority smallint, p_id bigint, p_count integer, p_bytes bigint,
    p_operator text, p_reason text,
    OUT canceled bigint, OUT priority smallint, OUT id bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT r.priority, r.id, r.command_id, pg_column_size(r.data) AS bytes
        FROM {schema}.ready r
        WHERE r.domain = p_domain AND (r.priority, r.id) > (p_priority, p_id)
            AND (p_type IS NULL OR r.type = p_type)
            AND (p_since IS NULL OR r.created_at >= p_since)
            AND r.created_at < p_until
            AND {schema}.is_claimable(r.claimer, r.lease_until)
        ORDER BY r.domain, r.priority, r.id
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.priority, p.id, p.command_id,
            sum(p.bytes) OVER (ORDER BY p.priority, p.id) - p.bytes AS bytes_before
        FROM picked p
    )
    SELECT array_agg(s.command_id), (array_agg(s.priority ORDER BY s.priority DESC))[1],
        (array_agg(s.id ORDER BY s.priority DESC, s.id DESC))[1]
    INTO command_ids, priority, id FROM summed s WHERE s.bytes_before < p_bytes;
    canceled := {schema}.cancel_ids(p_domain, command_ids, false, p_reason, p_operator, NULL);
END
$$;

-- The same for limited, by lanes, after the command with this type, key, priority and position.
CREATE FUNCTION {schema}.cancel_limited(
    p_domain text, p_type text, p_since timestamptz, p_until timestamptz,
    p_after_type text, p_after_key text, p_after_priority smallint, p_after_position bigint,
    p_count integer, p_bytes bigint, p_operator text, p_reason text,
    OUT canceled bigint, OUT after_type text, OUT after_key text, OUT after_priority smallint,
    OUT after_position bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT l.type::text AS type, coalesce(l.key, '') AS key, l.priority, l.lane_position,
            l.command_id, pg_column_size(l.data) AS bytes
        FROM {schema}.limited l
        WHERE l.domain = p_domain
            AND (l.type, coalesce(l.key, ''), l.priority, l.lane_position)
                > (p_after_type, p_after_key, p_after_priority, p_after_position)
            AND (p_type IS NULL OR l.type = p_type)
            AND (p_since IS NULL OR l.created_at >= p_since)
            AND l.created_at < p_until
        ORDER BY l.domain, l.type, coalesce(l.key, ''), l.priority, l.lane_position
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.*, sum(p.bytes) OVER lanes - p.bytes AS bytes_before,
            row_number() OVER lanes AS place
        FROM picked p
        WINDOW lanes AS (ORDER BY p.type, p.key, p.priority, p.lane_position)
    ), fitting AS (
        SELECT s.* FROM summed s WHERE s.bytes_before < p_bytes
    )
    SELECT (SELECT array_agg(f.command_id ORDER BY f.place) FROM fitting f),
        last.type, last.key, last.priority, last.lane_position
    INTO command_ids, after_type, after_key, after_priority, after_position
    FROM fitting last ORDER BY last.place DESC LIMIT 1;
    canceled := {schema}.cancel_ids(
        p_domain, coalesce(command_ids, '{}'), false, p_reason, p_operator, NULL);
END
$$;

-- The same for the commands of a key in p_table (scheduled, limited or ready), the first sent
-- first. The next chunk has p_since = last; NULL: none is left.
CREATE FUNCTION {schema}.cancel_of_key(
    p_table text, p_domain text, p_key text, p_type text, p_since timestamptz,
    p_until timestamptz, p_count integer, p_bytes bigint, p_operator text, p_reason text,
    OUT canceled bigint, OUT last timestamptz
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    command_ids uuid[];
BEGIN
    WITH of_scheduled AS MATERIALIZED (
        SELECT s.command_id, s.created_at, pg_column_size(s.data) AS bytes
        FROM {schema}.scheduled s
        WHERE p_table = 'scheduled' AND s.domain = p_domain AND s.key = p_key
            AND (p_type IS NULL OR s.type = p_type)
            AND s.created_at >= coalesce(p_since, '-infinity') AND s.created_at < p_until
        ORDER BY s.domain, s.key, s.created_at
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), of_limited AS MATERIALIZED (
        SELECT l.command_id, l.created_at, pg_column_size(l.data) AS bytes
        FROM {schema}.limited l
        WHERE p_table = 'limited' AND l.domain = p_domain AND l.key = p_key
            AND (p_type IS NULL OR l.type = p_type)
            AND l.created_at >= coalesce(p_since, '-infinity') AND l.created_at < p_until
        ORDER BY l.domain, l.key, l.created_at
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), of_ready AS MATERIALIZED (
        SELECT r.command_id, r.created_at, pg_column_size(r.data) AS bytes
        FROM {schema}.ready r
        WHERE p_table = 'ready' AND r.domain = p_domain AND r.key = p_key
            AND (p_type IS NULL OR r.type = p_type)
            AND r.created_at >= coalesce(p_since, '-infinity') AND r.created_at < p_until
            AND {schema}.is_claimable(r.claimer, r.lease_until)
        ORDER BY r.domain, r.key, r.created_at
        LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), summed AS (
        SELECT p.*, sum(p.bytes) OVER (ORDER BY p.created_at, p.command_id) - p.bytes
            AS bytes_before
        FROM (TABLE of_scheduled UNION ALL TABLE of_limited UNION ALL TABLE of_ready) p
    )
    SELECT array_agg(s.command_id ORDER BY s.created_at, s.command_id), max(s.created_at)
    INTO command_ids, last FROM summed s WHERE s.bytes_before < p_bytes;
    canceled := {schema}.cancel_ids(
        p_domain, coalesce(command_ids, '{}'), false, p_reason, p_operator, NULL);
END
$$;
