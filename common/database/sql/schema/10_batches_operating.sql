-- Cancellation of batches, what is read of their commands, and their retention.

-- Requests the cancellation of a batch: from then on it takes no commands, and stewards cancel what
-- waits. Returns the status that it had, or NULL if it is unknown. Waits for a locked row.
CREATE FUNCTION {schema}.cancel_batch(
    p_batch_id uuid, p_operator {schema}.remark, p_reason {schema}.remark
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    PERFORM FROM {schema}.batch_state b WHERE b.batch_id = p_batch_id FOR UPDATE;
    RETURN {schema}.request_cancel(p_batch_id, p_operator, p_reason);
END
$$;

-- The same, and does not wait for commands of the batch that add others.
CREATE FUNCTION {schema}.request_cancel(p_batch_id uuid, p_operator text, p_reason text)
RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE {schema}.batch_state SET
        cancel_requested_at = clock_timestamp(), cancel_operator = p_operator,
        cancel_reason = p_reason
    WHERE batch_id = p_batch_id AND completed_at IS NULL AND cancel_requested_at IS NULL;
    RETURN (SELECT b.status FROM {schema}.batch_state b WHERE b.batch_id = p_batch_id);
END
$$;

-- Cancels waiting commands of a batch whose cancellation was requested, a chunk at a time: those of
-- p_table (scheduled, limited or ready) after (p_created_at, p_id), at most p_count and p_bytes of
-- stored data, but at least one. In limited the id is the lane_position. Skips locked rows. The
-- next chunk has those after (created_at, id); NULL: none is left. With p_table process, the
-- processes that no worker has begun.
CREATE FUNCTION {schema}.cancel_in_batch(
    p_batch_id uuid, p_table text, p_created_at timestamptz, p_id bigint, p_count integer,
    p_bytes bigint, OUT canceled bigint, OUT created_at timestamptz, OUT id bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    batch {schema}.batch_state;
    keys record;
BEGIN
    canceled := 0;
    SELECT b.* INTO batch FROM {schema}.batch_state b
    WHERE b.batch_id = p_batch_id AND b.cancel_requested_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_table = 'process' THEN
        canceled := {schema}.cancel_processes_of_batch(p_batch_id, p_count);
        id := nullif(canceled, 0);
        RETURN;
    END IF;
    FOR keys IN
        WITH of_scheduled AS MATERIALIZED (
            SELECT s.domain, s.command_id, s.created_at, s.id, pg_column_size(s.data) AS bytes
            FROM {schema}.scheduled s
            WHERE p_table = 'scheduled' AND s.batch_id = p_batch_id
                AND (s.created_at, s.id)
                    > (coalesce(p_created_at, '-infinity'), coalesce(p_id, 0))
            ORDER BY s.batch_id, s.created_at, s.id
            LIMIT p_count
            FOR UPDATE SKIP LOCKED
        ), of_limited AS MATERIALIZED (
            SELECT l.domain, l.command_id, l.created_at, l.lane_position AS id,
                pg_column_size(l.data) AS bytes
            FROM {schema}.limited l
            WHERE p_table = 'limited' AND l.batch_id = p_batch_id
                AND (l.created_at, l.lane_position)
                    > (coalesce(p_created_at, '-infinity'), coalesce(p_id, 0))
            ORDER BY l.batch_id, l.created_at, l.lane_position
            LIMIT p_count
            FOR UPDATE SKIP LOCKED
        ), of_ready AS MATERIALIZED (
            SELECT r.domain, r.command_id, r.created_at, r.id, pg_column_size(r.data) AS bytes
            FROM {schema}.ready r
            WHERE p_table = 'ready' AND r.batch_id = p_batch_id
                AND (r.created_at, r.id)
                    > (coalesce(p_created_at, '-infinity'), coalesce(p_id, 0))
                AND {schema}.is_claimable(r.claimer, r.lease_until)
            ORDER BY r.batch_id, r.created_at, r.id
            LIMIT p_count
            FOR UPDATE SKIP LOCKED
        ), summed AS (
            SELECT p.*, sum(p.bytes) OVER (ORDER BY p.created_at, p.id) - p.bytes AS bytes_before
            FROM (TABLE of_scheduled UNION ALL TABLE of_limited UNION ALL TABLE of_ready) p
        )
        SELECT s.domain::text AS domain, array_agg(s.command_id) AS command_ids,
            max(s.created_at) AS created_at,
            (array_agg(s.id ORDER BY s.created_at DESC, s.id DESC))[1] AS id
        FROM summed s WHERE s.bytes_before < p_bytes
        GROUP BY s.domain
    LOOP
        canceled := canceled + {schema}.cancel_ids(
            keys.domain, keys.command_ids, false, batch.cancel_reason, batch.cancel_operator,
            NULL);
        IF created_at IS NULL OR (keys.created_at, keys.id) > (created_at, id) THEN
            created_at := keys.created_at;
            id := keys.id;
        END IF;
    END LOOP;
END
$$;

-- Keys of the commands of a batch, or of those in a status, the last sent first: p_count of each
-- table at least. Each index gives the latest, however many the batch has.
CREATE FUNCTION {schema}.batch_keys(p_batch_id uuid, p_status text, p_count bigint)
RETURNS TABLE (domain text, command_id uuid, created_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        (SELECT r.domain::text, r.command_id, r.created_at FROM {schema}.ready r
         WHERE r.batch_id = p_batch_id AND (p_status IS NULL OR p_status = CASE
             WHEN r.lease_until > clock_timestamp() THEN 'IN_PROGRESS' ELSE 'PENDING' END)
         ORDER BY r.batch_id DESC, r.created_at DESC, r.id DESC
         LIMIT p_count)
        UNION ALL
        (SELECT s.domain::text, s.command_id, s.created_at FROM {schema}.scheduled s
         WHERE s.batch_id = p_batch_id AND (p_status IS NULL OR p_status = 'PENDING')
         ORDER BY s.batch_id DESC, s.created_at DESC, s.id DESC
         LIMIT p_count)
        UNION ALL
        (SELECT l.domain::text, l.command_id, l.created_at FROM {schema}.limited l
         WHERE l.batch_id = p_batch_id AND (p_status IS NULL OR p_status = 'PENDING')
         ORDER BY l.batch_id DESC, l.created_at DESC, l.lane_position DESC
         LIMIT p_count)
        UNION ALL
        (SELECT t.domain, t.command_id, t.created_at FROM {schema}.troubleshooting t
         WHERE t.batch_id = p_batch_id
             AND (p_status IS NULL OR p_status = 'IN_TROUBLESHOOTING_QUEUE')
         ORDER BY t.batch_id DESC, t.created_at DESC
         LIMIT p_count)
        UNION ALL
        SELECT f.domain, f.command_id, f.created_at
        FROM unnest(ARRAY['COMPLETED', 'FAILED', 'CANCELED']) q (status), LATERAL (
            -- An = would let finished_newest give the same order, by reading all of history.
            SELECT h.domain, h.command_id, h.created_at FROM {schema}.finished h
            WHERE h.batch_id = p_batch_id AND h.status >= q.status AND h.status <= q.status
            ORDER BY h.batch_id DESC, h.status DESC, h.created_at DESC
            LIMIT p_count) f
        WHERE p_status IS NULL OR p_status = q.status;
END
$$;

-- Removes up to p_size batches that their domains do not keep any longer, and lines of the tally
-- that belong to none; returns their number. A batch stays while what it has sent at its end waits
-- or runs: that is about its counters. Skips locked rows.
CREATE FUNCTION {schema}.retain_batches(p_size integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM {schema}.tally t
    WHERE NOT EXISTS (SELECT FROM {schema}.batch_state b
                      WHERE b.batch_id = t.batch_id AND b.completed_at IS NULL);
    DELETE FROM {schema}.batch_state WHERE batch_id = ANY (ARRAY(
        SELECT b.batch_id
        FROM {schema}.batch_state b LEFT JOIN {schema}.domain d ON d.name = b.domain, LATERAL (
            SELECT (r.request).domain::text AS domain, (r.request).command_id
            FROM (SELECT CASE b.status WHEN 'CANCELED' THEN b.on_cancel ELSE b.on_complete END)
                r (request)) sent
        WHERE b.completed_at < clock_timestamp()
            - greatest(coalesce(d.keep, interval '7 days'), interval '1 minute')
            -- Each by its key: a join with the view of all commands reads all of ready.
            AND NOT EXISTS (
                SELECT FROM {schema}.ready q
                WHERE q.domain || '' = sent.domain AND q.command_id = sent.command_id)
            AND NOT EXISTS (
                SELECT FROM {schema}.scheduled q
                WHERE q.domain = sent.domain AND q.command_id = sent.command_id)
            AND NOT EXISTS (
                SELECT FROM {schema}.limited q
                WHERE q.domain || '' = sent.domain AND q.command_id = sent.command_id)
            AND NOT EXISTS (
                SELECT FROM {schema}.troubleshooting q
                WHERE q.domain = sent.domain AND q.command_id = sent.command_id)
        LIMIT p_size
        FOR UPDATE OF b SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
