-- Batches: their counters, and how they begin and end. A command counts in the transaction that
-- ends it, by a line of the tally. Two transactions that commit at once do not see each other's
-- lines, so each process checks after its own commit whether the batch is over.

-- Counts ended commands; called in the settling transaction. A NULL of p_batch_ids is a command
-- without a batch; p_kinds are COMPLETED, FAILED or CANCELED (others do not count), and all are
-- COMPLETED if it is NULL; p_lost has the positions of commands that were not found.
CREATE FUNCTION {schema}.count_ended(p_batch_ids uuid[], p_kinds text[], p_lost bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO {schema}.tally (batch_id, completed, failed, canceled)
    SELECT e.batch_id, count(*) FILTER (WHERE e.kind = 'COMPLETED'),
        count(*) FILTER (WHERE e.kind = 'FAILED'), count(*) FILTER (WHERE e.kind = 'CANCELED')
    FROM (
        SELECT o.batch_id, o.position,
            CASE WHEN p_kinds IS NULL THEN 'COMPLETED' ELSE o.kind END AS kind
        FROM unnest(p_batch_ids, p_kinds) WITH ORDINALITY o (batch_id, kind, position)
    ) e
    WHERE e.batch_id IS NOT NULL AND e.kind IN ('COMPLETED', 'FAILED', 'CANCELED')
        AND e.position <> ALL (p_lost)
    GROUP BY e.batch_id;
END
$$;

-- Counts commands that an operator ends, all of a kind, and ends the batches that are over with
-- them, in the same transaction.
CREATE FUNCTION {schema}.end_in_batches(p_batch_ids uuid[], p_kind text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.count_ended(
        p_batch_ids, array_fill(p_kind, ARRAY[cardinality(p_batch_ids)]), '{}');
    BEGIN
        PERFORM {schema}.end_batches(ARRAY(SELECT DISTINCT unnest(p_batch_ids)));
    EXCEPTION WHEN OTHERS THEN
        NULL;  -- What the operator decides matters more. A steward tries again, and logs why not.
    END;
END
$$;

-- Ends those of these batches that are over; called by workers after their settlements have
-- committed. With another isolation level, in a caller's transaction, the snapshot may be too old
-- to say that: a steward ends them.
CREATE FUNCTION {schema}.end_batches(p_batch_ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    PERFORM {schema}.fold_batch(b.batch_id)
    FROM {schema}.batch_state b
    WHERE b.batch_id = ANY (p_batch_ids) AND b.completed_at IS NULL
        AND current_setting('transaction_isolation') = 'read committed'
        AND b.remaining <= (
            SELECT coalesce(sum(t.completed + t.failed + t.canceled - t.total), 0)
            FROM {schema}.tally t WHERE t.batch_id = b.batch_id);
END
$$;

-- Adds the tally to the counters of a batch; if it is over then, ends it, and sends what it is to
-- send. Called by stewards, too. Skips a locked row: the session that has locked it checks again.
CREATE FUNCTION {schema}.fold_batch(p_batch_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    present timestamptz;
    sums record;
    batch {schema}.batch_state;
BEGIN
    PERFORM FROM {schema}.batch_state b
    WHERE b.batch_id = p_batch_id AND b.completed_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    present := clock_timestamp();
    -- A second statement: its snapshot shows what had committed before the row was locked.
    WITH gone AS (
        DELETE FROM {schema}.tally t WHERE t.batch_id = p_batch_id
        RETURNING t.total, t.completed, t.failed, t.canceled
    )
    SELECT coalesce(sum(total), 0)::bigint AS total,
        coalesce(sum(completed), 0)::bigint AS completed,
        coalesce(sum(failed), 0)::bigint AS failed,
        coalesce(sum(canceled), 0)::bigint AS canceled,
        count(*) AS lines
    INTO sums FROM gone;
    UPDATE {schema}.batch_state b SET
        total = b.total + sums.total, completed = b.completed + sums.completed,
        failed = b.failed + sums.failed, canceled = b.canceled + sums.canceled,
        started_at = coalesce(
            b.started_at, CASE WHEN sums.completed + sums.failed > 0 THEN present END),
        completed_at = CASE WHEN b.remaining + sums.total
            <= sums.completed + sums.failed + sums.canceled THEN present END
    WHERE b.batch_id = p_batch_id AND (sums.lines > 0 OR b.remaining <= 0)
    RETURNING b.* INTO batch;
    IF batch.completed_at IS NULL THEN
        RETURN;
    END IF;
    IF batch.status = 'CANCELED' THEN
        PERFORM {schema}.send_request(batch.on_cancel, p_batch_id),
            {schema}.forget_request(batch.on_complete);
    ELSE
        PERFORM {schema}.send_request(batch.on_complete, p_batch_id),
            {schema}.forget_request(batch.on_cancel);
    END IF;
END
$$;

-- Sends what a batch is to send, if anything, whatever the limits of its domain: a full one must
-- not keep batches from ending.
CREATE FUNCTION {schema}.send_request(p_request {schema}.request, p_correlation_id uuid)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    due timestamptz := coalesce(
        p_request.run_at, clock_timestamp() + make_interval(secs => p_request.delay));
    expires timestamptz := coalesce(
        p_request.expires_at, clock_timestamp() + make_interval(secs => p_request.expires));
BEGIN
    IF p_request.command_id IS NULL THEN
        RETURN;
    END IF;
    IF expires IS NOT NULL THEN
        PERFORM {schema}.wake_at(expires);
    END IF;
    IF due > clock_timestamp() THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                               reply_to, max_attempts, due_at, key, expires_at, headers)
        VALUES (p_request.domain, p_request.priority, p_request.command_id, p_request.type,
                p_request.data, p_correlation_id, p_request.reply_to, p_request.max_attempts, due,
                p_request.key, expires, p_request.headers);
    ELSE
        INSERT INTO {schema}.ready (domain, priority, command_id, type, data, correlation_id,
                           reply_to, max_attempts, key, expires_at, headers)
        VALUES (p_request.domain, p_request.priority, p_request.command_id, p_request.type,
                p_request.data, p_correlation_id, p_request.reply_to, p_request.max_attempts,
                p_request.key, expires, p_request.headers);
    END IF;
    IF p_request.changes IS NOT NULL THEN
        INSERT INTO {schema}.event (domain, command_id, kind, details)
        VALUES (p_request.domain, p_request.command_id, 'CHANGED_ON_SEND', p_request.changes);
    END IF;
END
$$;

-- Lets the id of a command that is never sent be taken by another one.
CREATE FUNCTION {schema}.forget_request(p_request {schema}.request) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_request.own THEN
        DELETE FROM {schema}.identity i
        WHERE i.domain = p_request.domain AND i.command_id = p_request.command_id;
    END IF;
END
$$;

-- Whether a call that creates a batch has been carried out before: see already_sent.
CREATE FUNCTION {schema}.batch_exists(p_batch_id uuid, p_call bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(p_call);
    RETURN EXISTS (SELECT FROM {schema}.batch_state b WHERE b.batch_id = p_batch_id);
END
$$;

-- Creates a batch in the transaction that has written its commands.
CREATE FUNCTION {schema}.create_batch(
    p_batch_id uuid, p_domain text, p_name text, p_data json, p_total bigint,
    p_on_complete json, p_on_cancel json
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    on_complete {schema}.request := json_populate_record(NULL::{schema}.request, p_on_complete);
    on_cancel {schema}.request := json_populate_record(NULL::{schema}.request, p_on_cancel);
    request {schema}.request;
BEGIN
    -- json_populate_record makes NULL of a JSON null.
    on_complete.data := p_on_complete -> 'data';
    on_cancel.data := p_on_cancel -> 'data';
    IF p_total < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a batch has at least one command';
    END IF;
    FOREACH request IN ARRAY ARRAY[on_complete, on_cancel] LOOP
        IF request.command_id IS NOT NULL AND (
            request.domain IS NULL OR request.type IS NULL OR request.data IS NULL
            OR request.priority IS NULL OR request.delay NOT BETWEEN 0 AND 3155760000
            OR request.expires NOT BETWEEN 0 AND 3155760000)
        THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a command that can be sent';
        END IF;
    END LOOP;
    INSERT INTO {schema}.batch_state (
        batch_id, domain, name, data, total, on_complete, on_cancel)
    VALUES (p_batch_id, p_domain, p_name, p_data, p_total, on_complete, on_cancel);
END
$$;

-- Notes that commands of these batches run, and returns those that another session has locked.
-- Called by the first worker process that claims something of them.
CREATE FUNCTION {schema}.start_batches(p_batch_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    UPDATE {schema}.batch_state SET started_at = clock_timestamp()
    WHERE batch_id = ANY (ARRAY(
        SELECT b.batch_id FROM {schema}.batch_state b
        WHERE b.batch_id = ANY (p_batch_ids) AND b.started_at IS NULL AND b.completed_at IS NULL
        FOR NO KEY UPDATE SKIP LOCKED));
    RETURN ARRAY(
        SELECT b.batch_id FROM {schema}.batch_state b
        WHERE b.batch_id = ANY (p_batch_ids) AND b.started_at IS NULL AND b.completed_at IS NULL);
END
$$;

-- Counts commands that a transaction adds to a batch, which cannot end before that commits. Returns
-- why the batch takes none: 'CANCELING', its status if it is over, or 'UNKNOWN'; NULL if it does.
-- Those that add do not wait for each other. p_within: a command of the batch adds them, which
-- keeps it from ending by itself; it waits for cancel_batch alone, and cancel_batch for it.
CREATE FUNCTION {schema}.add_to_batch(
    p_batch_id uuid, p_count bigint, p_within boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    batch {schema}.batch_state;
BEGIN
    IF p_within THEN
        SELECT b.* INTO batch FROM {schema}.batch_state b
        WHERE b.batch_id = p_batch_id FOR KEY SHARE;
    ELSE
        SELECT b.* INTO batch FROM {schema}.batch_state b WHERE b.batch_id = p_batch_id FOR SHARE;
    END IF;
    IF NOT FOUND THEN
        RETURN 'UNKNOWN';
    ELSIF batch.completed_at IS NOT NULL THEN
        RETURN batch.status;
    ELSIF batch.cancel_requested_at IS NOT NULL THEN
        RETURN 'CANCELING';
    END IF;
    INSERT INTO {schema}.tally (batch_id, total) VALUES (p_batch_id, p_count);
    RETURN NULL;
END
$$;
