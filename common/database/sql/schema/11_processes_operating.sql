-- Cancels and retries of processes, and deadlines of their steps, which cancel what these await.

-- Cancels all commands of a batch, wherever they are, in one transaction. False if it is over or
-- unknown. Waits for locked rows, in the order in which settlements lock theirs.
CREATE FUNCTION {schema}.end_batch_now(p_batch_id uuid, p_operator text, p_reason text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    keys record;
    status text := {schema}.request_cancel(p_batch_id, p_operator, p_reason);
    has_more boolean := true;
BEGIN
    IF status IS NULL OR status NOT IN ('PENDING', 'IN_PROGRESS') THEN
        RETURN false;
    END IF;
    -- Repeated while commands move from one table to another between two reads.
    WHILE has_more LOOP
        has_more := false;
        FOR keys IN
            SELECT c.domain, array_agg(c.command_id ORDER BY c.priority, c.id) AS command_ids
            FROM (SELECT r.domain::text, r.priority, r.id, r.command_id FROM {schema}.ready r
                  WHERE r.batch_id = p_batch_id
                  UNION ALL
                  SELECT s.domain::text, s.priority, s.id, s.command_id FROM {schema}.scheduled s
                  WHERE s.batch_id = p_batch_id
                  UNION ALL
                  SELECT l.domain::text, l.priority, NULL, l.command_id FROM {schema}.limited l
                  WHERE l.batch_id = p_batch_id) c
            GROUP BY c.domain ORDER BY c.domain
        LOOP
            has_more := true;
            PERFORM {schema}.cancel_ids(
                keys.domain, keys.command_ids, true, p_reason, p_operator, NULL);
        END LOOP;
        SELECT array_agg(t.domain) AS domains, array_agg(t.command_id) AS command_ids INTO keys
        FROM {schema}.troubleshooting t WHERE t.batch_id = p_batch_id;
        IF keys.domains IS NOT NULL THEN
            has_more := true;
            PERFORM {schema}.resolve_keys(
                'CANCEL', keys.domains, keys.command_ids, p_operator, p_reason, NULL, NULL);
        END IF;
    END LOOP;
    -- The session that ended its last commands meanwhile has skipped its row, which is locked here.
    PERFORM {schema}.end_batches(ARRAY[p_batch_id]);
    RETURN true;
END
$$;

-- Cancels the command that a process awaits, wherever it is, or all commands of the batch, so that
-- nothing of it commits from then on; the reply moves the process on. False if it has ended by
-- itself or is unknown.
CREATE FUNCTION {schema}.end_awaited(
    p_process {schema}.managed_process, p_operator text, p_reason text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    place text;
BEGIN
    IF p_process.awaited_domain IS NULL THEN
        RETURN {schema}.end_batch_now(p_process.awaited_id, p_operator, p_reason);
    END IF;
    LOOP
        place := {schema}.cancel(p_process.awaited_domain, p_process.awaited_id, p_reason, true,
                                 p_operator);
        IF place IS DISTINCT FROM 'troubleshooting' THEN
            RETURN coalesce(place = 'canceled', false);
        END IF;
        IF {schema}.resolve_keys(
            'CANCEL', ARRAY[p_process.awaited_domain], ARRAY[p_process.awaited_id],
            p_operator, p_reason, NULL, NULL) = 1
        THEN
            RETURN true;
        END IF;
    END LOOP;
END
$$;

-- Fires the deadline of a step: cancels what it has sent, and the step has failed. Returns the
-- reason for that, or NULL if the step has ended, so that its reply counts.
CREATE FUNCTION {schema}.expire_step(p_process_id uuid, p_number integer) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    process {schema}.managed_process;
    reason text;
BEGIN
    SELECT p.* INTO process FROM {schema}.managed_process p
    WHERE p.process_id = p_process_id FOR UPDATE;
    reason := format('the deadline of step %s has passed', process.step);
    IF process.number IS DISTINCT FROM p_number OR process.status <> 'WAITING_FOR_REPLY'
        OR NOT {schema}.end_awaited(process, NULL, reason)
    THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.managed_process p
    SET status = 'COMPENSATING', ending = 'COMPENSATED', error = 'DEADLINE: ' || reason,
        updated_at = clock_timestamp()
    WHERE p.process_id = p_process_id;
    INSERT INTO {schema}.process_event (process_id, kind, message, details)
    VALUES (p_process_id, 'DEADLINE', reason, json_build_object('number', p_number));
    RETURN reason;
END
$$;

-- Lets a worker check on a process whose reply may never come.
CREATE FUNCTION {schema}.resume_process(p_process {schema}.managed_process) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.ready (domain, priority, command_id, type, correlation_id, data)
    VALUES (p_process.domain, 5, {schema}.new_id(), 'process:resume', p_process.process_id, 'null')
$$;

-- Takes the commands of a process itself, replies among them, out of troubleshooting, and returns
-- their number; p_action is as in resolve_keys.
CREATE FUNCTION {schema}.resolve_own(
    p_action text, p_process {schema}.managed_process, p_operator text, p_reason text
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    own constant uuid[] := ARRAY(
        SELECT t.command_id FROM {schema}.troubleshooting t
        WHERE t.domain = p_process.domain::text
            AND t.correlation_id IN (p_process.process_id, p_process.awaited_id)
            AND (t.type = 'Reply' OR starts_with(t.type, 'process:')));
BEGIN
    RETURN {schema}.resolve_keys(
        p_action, array_fill(p_process.domain::text, ARRAY[cardinality(own)]), own, p_operator,
        p_reason, NULL, NULL);
END
$$;

-- Cancels a process: what it awaits, and its own commands that need an operator; then the fleet
-- compensates. Returns 'canceled', the status of one that is over or compensates already, or NULL
-- if it is unknown. Waits for a locked row.
CREATE FUNCTION {schema}.cancel_process(
    p_process_id uuid, p_operator {schema}.remark, p_reason {schema}.remark, p_call bigint
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    process {schema}.managed_process;
    is_pending boolean;
BEGIN
    SELECT p.* INTO process FROM {schema}.managed_process p
    WHERE p.process_id = p_process_id FOR UPDATE;
    IF {schema}.was_done_to_process(p_process_id, p_call) THEN
        RETURN 'canceled';
    END IF;
    IF process.process_id IS NULL OR process.ending IS NOT NULL
        OR process.finished_at IS NOT NULL
    THEN
        RETURN process.status;
    END IF;
    is_pending := process.status = 'PENDING';
    INSERT INTO {schema}.process_event (process_id, call, kind, operator, message)
    VALUES (p_process_id, p_call, 'CANCEL_REQUESTED', p_operator, p_reason);
    UPDATE {schema}.managed_process p SET
        status = CASE WHEN is_pending THEN 'CANCELED' ELSE 'COMPENSATING' END,
        finished_at = CASE WHEN is_pending THEN clock_timestamp() END,
        ending = 'CANCELED', error = 'CANCELED: ' || coalesce(p_reason, 'by an operator'),
        updated_at = clock_timestamp()
    WHERE p.process_id = p_process_id;
    PERFORM {schema}.resolve_own('CANCEL', process, p_operator, p_reason);
    IF is_pending THEN
        PERFORM {schema}.count_process(p_process_id);
    ELSIF NOT {schema}.end_awaited(process, p_operator, p_reason) THEN
        PERFORM {schema}.resume_process(process);
    END IF;
    RETURN 'canceled';
END
$$;

-- Cancels processes of a batch that no worker has begun; its cancellation was requested before.
-- Skips locked rows. Returns their number.
CREATE FUNCTION {schema}.cancel_processes_of_batch(p_batch_id uuid, p_count integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    canceled bigint;
BEGIN
    SELECT count({schema}.cancel_process(q.process_id, b.cancel_operator, b.cancel_reason, NULL))
    INTO canceled
    FROM {schema}.batch_state b, LATERAL (
        SELECT p.process_id FROM {schema}.managed_process p
        WHERE p.batch_id = b.batch_id AND p.status = 'PENDING'
        LIMIT p_count
        FOR UPDATE SKIP LOCKED) q
    WHERE b.batch_id = p_batch_id AND b.cancel_requested_at IS NOT NULL;
    RETURN canceled;
END
$$;

-- Takes out of troubleshooting what a process awaits, and its own commands; or lets the fleet send
-- failed compensations again, or look for a reply or a start that was lost. Returns 'retried', the
-- status of a process that is over or whose command waits or runs, or NULL if it is unknown.
CREATE FUNCTION {schema}.retry_process(
    p_process_id uuid, p_operator {schema}.remark, p_reason {schema}.remark, p_call bigint
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    process {schema}.managed_process;
    of_batch record;
    retried bigint;
BEGIN
    SELECT p.* INTO process FROM {schema}.managed_process p
    WHERE p.process_id = p_process_id FOR UPDATE;
    IF {schema}.was_done_to_process(p_process_id, p_call) THEN
        RETURN 'retried';
    END IF;
    IF process.process_id IS NULL
        OR process.finished_at IS NOT NULL AND process.status <> 'FAILED'
    THEN
        RETURN process.status;
    END IF;
    SELECT coalesce(array_agg(t.domain), '{}') AS domains,
        coalesce(array_agg(t.command_id), '{}') AS command_ids
    INTO of_batch FROM {schema}.troubleshooting t
    WHERE process.awaited_domain IS NULL AND t.batch_id = process.awaited_id;
    retried := {schema}.resolve_keys(
            'RETRY', process.awaited_domain || of_batch.domains,
            process.awaited_id || of_batch.command_ids, p_operator, p_reason, NULL, NULL)
        + {schema}.resolve_own('RETRY', process, p_operator, p_reason);
    IF process.status = 'FAILED' THEN
        UPDATE {schema}.process_step s SET undone = NULL
        WHERE s.process_id = p_process_id AND s.undone IN ('FAILED', 'CANCELED');
        UPDATE {schema}.managed_process p
        SET status = 'COMPENSATING', finished_at = NULL, updated_at = clock_timestamp()
        WHERE p.process_id = p_process_id;
    ELSIF retried = 0 AND (
        EXISTS (
            SELECT FROM {schema}.command c
            WHERE c.domain = coalesce(process.awaited_domain, process.domain::text)
                AND c.command_id = coalesce(process.awaited_id, process.start_id)
                AND c.status IN ('PENDING', 'IN_PROGRESS'))
        OR EXISTS (
            SELECT FROM {schema}.batch_state b
            WHERE process.awaited_domain IS NULL AND b.batch_id = process.awaited_id
                AND b.completed_at IS NULL))
    THEN
        RETURN process.status;
    END IF;
    IF retried = 0 OR process.status = 'FAILED' THEN
        PERFORM {schema}.resume_process(process);
    END IF;
    INSERT INTO {schema}.process_event (process_id, call, kind, operator, message)
    VALUES (p_process_id, p_call, 'RETRIED', p_operator, p_reason);
    RETURN 'retried';
END
$$;

-- Whether an operator's call was carried out before: it is repeated where its reply was lost.
CREATE FUNCTION {schema}.was_done_to_process(p_process_id uuid, p_call bigint) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.process_event e
        WHERE e.process_id = p_process_id AND e.call = p_call)
$$;
