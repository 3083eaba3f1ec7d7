-- Moving processes on: their replies, their next commands, and their end.

-- The rows of processes, without those that are unknown. Waits for transactions that move them on,
-- or leaves those out (p_skips_locked).
CREATE FUNCTION {schema}.lock_processes(p_process_ids uuid[], p_skips_locked boolean)
RETURNS SETOF {schema}.managed_process
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    IF p_skips_locked THEN
        RETURN QUERY
        SELECT p.* FROM {schema}.managed_process p
        WHERE p.process_id = ANY (p_process_ids)
        FOR UPDATE SKIP LOCKED;
    ELSE
        -- Sorted, so that two calls with the same ids cannot deadlock.
        RETURN QUERY
        SELECT p.* FROM {schema}.managed_process p
        WHERE p.process_id = ANY (p_process_ids)
        ORDER BY p.process_id
        FOR UPDATE;
    END IF;
END
$$;

-- Stores the reply to the latest command of a process, and ends its timer. p_undoing is the
-- number of the step that the command has undone, if it was a compensation.
CREATE FUNCTION {schema}.end_step(
    p_process_id uuid, p_number integer, p_undoing integer, p_outcome text, p_error text,
    p_domain text, p_timer_id uuid
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    UPDATE {schema}.process_step
    SET outcome = p_outcome, error = p_error, received_at = clock_timestamp()
    WHERE process_id = p_process_id AND number = p_number;
    IF p_undoing IS NOT NULL THEN
        UPDATE {schema}.process_step SET undone = p_outcome
        WHERE process_id = p_process_id AND number = p_undoing;
    END IF;
    IF p_timer_id IS NOT NULL THEN
        PERFORM {schema}.cancel_ids(
            p_domain, ARRAY[p_timer_id], false, 'its step has ended', NULL, NULL);
    END IF;
END
$$;

-- Counts a process that is over for its batch, if it has one and was not counted before. The
-- command that it sends checks whether the batch is over: two processes that end at the same time
-- do not see each other's lines.
CREATE FUNCTION {schema}.count_process(p_process_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    process {schema}.managed_process;
BEGIN
    UPDATE {schema}.managed_process p SET counted = true
    WHERE p.process_id = p_process_id AND p.batch_id IS NOT NULL AND NOT p.counted
    RETURNING p.* INTO process;
    IF FOUND THEN
        PERFORM {schema}.count_ended(
            ARRAY[process.batch_id],
            ARRAY[CASE WHEN process.status IN ('COMPLETED', 'CANCELED') THEN process.status
                       ELSE 'FAILED' END], '{}');
        INSERT INTO {schema}.ready (domain, priority, command_id, type, correlation_id, data)
        VALUES (process.domain, 5, {schema}.new_id(), 'process:counted', process.batch_id, 'null');
    END IF;
END
$$;

-- Moves processes of a domain on: stores the reply to the latest command of each whose p_outcomes
-- is not NULL, ends that command's timer, writes the process and, unless its p_command_ids is NULL,
-- sends the command that it awaits next, whatever the limits of that domain: a full one must not
-- stop what has begun. Returns the ids that managers brought (p_own) and that are taken; then it
-- has written nothing. Where p_to_domains is NULL, the command id is that of a batch that the same
-- transaction has created. p_deadlines are in seconds, for the commands p_new_timer_ids.
CREATE FUNCTION {schema}.advance_processes(
    p_domain text, p_process_ids uuid[], p_numbers integer[], p_statuses text[], p_steps text[],
    p_undoings integer[], p_states json[], p_versions integer[], p_endings text[],
    p_errors text[], p_outcomes text[], p_problems text[], p_timer_ids uuid[],
    p_to_domains text[], p_types text[], p_data json[], p_command_ids uuid[], p_own boolean[],
    p_priorities smallint[], p_delays double precision[], p_run_at timestamptz[],
    p_max_attempts integer[], p_deadlines double precision[], p_new_timer_ids uuid[],
    p_keys text[], p_expires_at timestamptz[], p_headers json[]
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    present constant timestamptz := clock_timestamp();
    taken uuid[];
    counted uuid[];
BEGIN
    IF true = ANY (p_own) THEN
        SELECT array_agg(i.command_id) INTO taken
        FROM (SELECT array_agg(o.domain) AS domains, array_agg(o.command_id) AS command_ids
              FROM unnest(p_to_domains, p_command_ids, p_own) o (domain, command_id, own)
              WHERE o.own) brought,
            {schema}.identify(brought.domains, brought.command_ids,
                              hashtextextended(gen_random_uuid()::text, 0), true) i;
        IF taken IS NOT NULL THEN
            RETURN taken;
        END IF;
    END IF;
    IF 0 = ANY (p_numbers) THEN
        PERFORM {schema}.start_batches(array_agg(p.batch_id))
        FROM {schema}.managed_process p
        WHERE p.process_id = ANY (p_process_ids) AND p.number = 0 AND p.batch_id IS NOT NULL
        HAVING count(*) > 0;
    END IF;
    IF p_timer_ids IS NOT NULL THEN
        PERFORM {schema}.cancel_ids(p_domain, array_remove(p_timer_ids, NULL), false,
                                    'its step has ended', NULL, NULL);
    END IF;
    WITH o AS MATERIALIZED (
        SELECT o.*, o.command_id IS NOT NULL AS sends,
            present + make_interval(secs => o.deadline) AS deadline_at,
            coalesce(o.run_at, present + make_interval(secs => o.delay)) > present AS is_later
        FROM unnest(p_process_ids, p_numbers, p_statuses, p_steps, p_undoings, p_states,
                    p_versions, p_endings, p_errors, p_outcomes, p_problems, p_to_domains,
                    p_types, p_data, p_command_ids, p_priorities, p_delays, p_run_at,
                    p_max_attempts, p_deadlines, p_new_timer_ids, p_keys, p_expires_at, p_headers)
            o (process_id, number, status, step, undoing, state, version, ending, error, outcome,
               problem, to_domain, type, data, command_id, priority, delay, run_at, max_attempts,
               deadline, timer_id, key, expires_at, headers)
    ), ended AS (
        UPDATE {schema}.process_step s
        SET outcome = o.outcome, error = o.problem, received_at = present
        FROM o
        WHERE o.outcome IS NOT NULL AND s.process_id = o.process_id AND s.number = o.number
    ), undone AS (
        UPDATE {schema}.process_step s SET undone = 'SENT'
        FROM o
        WHERE o.sends AND s.process_id = o.process_id AND s.number = o.undoing
    ), sent AS (
        INSERT INTO {schema}.process_step (
            process_id, sent_at, deadline_at, command_id, number, undoes, step, domain, type)
        SELECT process_id, present, deadline_at, command_id, number + 1, undoing, step,
            coalesce(to_domain, p_domain), type
        FROM o WHERE sends
    ), commands AS (
        INSERT INTO {schema}.ready (domain, priority, command_id, type, data, correlation_id,
                                    reply_to, max_attempts, key, expires_at, headers)
        SELECT to_domain, priority, command_id, type, data, process_id, p_domain, max_attempts,
            key, expires_at, headers
        FROM o WHERE to_domain IS NOT NULL AND is_later IS NOT TRUE
    ), moved AS (
        UPDATE {schema}.managed_process p SET
            status = o.status, step = o.step, undoing = o.undoing, state = o.state,
            version = o.version, ending = o.ending, error = o.error,
            number = o.number + o.sends::integer, awaited_domain = o.to_domain,
            awaited_id = o.command_id, timer_id = o.timer_id, updated_at = present,
            finished_at = CASE WHEN NOT o.sends THEN present END
        FROM o
        WHERE p.process_id = o.process_id
        RETURNING p.process_id, p.batch_id, o.sends
    )
    SELECT array_agg(process_id) FILTER (WHERE NOT sends AND batch_id IS NOT NULL) INTO counted
    FROM moved;
    IF counted IS NOT NULL THEN
        PERFORM {schema}.count_process(c) FROM unnest(counted) c;
    END IF;
    IF p_expires_at IS NOT NULL THEN
        PERFORM {schema}.wake_at(min(e)) FROM unnest(p_expires_at) e;
    END IF;
    -- Apart: an insert fires its triggers for no rows, too.
    IF p_delays IS NOT NULL OR p_run_at IS NOT NULL THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                                        reply_to, max_attempts, due_at, key, expires_at,
                                        headers)
        SELECT o.to_domain, o.priority, o.command_id, o.type, o.data, o.process_id, p_domain,
            o.max_attempts, due.at, o.key, o.expires_at, o.headers
        FROM unnest(p_process_ids, p_to_domains, p_types, p_data, p_command_ids, p_priorities,
                    p_delays, p_run_at, p_max_attempts, p_keys, p_expires_at, p_headers)
            o (process_id, to_domain, type, data, command_id, priority, delay, run_at,
               max_attempts, key, expires_at, headers),
            coalesce(o.run_at, present + make_interval(secs => o.delay)) due (at)
        WHERE o.to_domain IS NOT NULL AND due.at > present;
    END IF;
    IF p_new_timer_ids IS NOT NULL THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                                        due_at, headers)
        SELECT p_domain, 0, o.timer_id, 'process:deadline',
            json_build_object('number', o.number + 1), o.process_id,
            present + make_interval(secs => o.deadline), {schema}.forwarded_headers(o.headers)
        FROM unnest(p_process_ids, p_numbers, p_deadlines, p_new_timer_ids, p_headers)
            o (process_id, number, deadline, timer_id, headers)
        WHERE o.timer_id IS NOT NULL;
    END IF;
    RETURN NULL;
END
$$;

-- Notes steps that need no compensation.
CREATE FUNCTION {schema}.skip_compensations(p_process_id uuid, p_numbers integer[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
    UPDATE {schema}.process_step SET undone = 'SKIPPED'
    WHERE process_id = p_process_id AND number = ANY (p_numbers)
$$;

-- Writes the state of a process that goes on waiting, and the signal that has changed it.
CREATE FUNCTION {schema}.write_signal(
    p_process_id uuid, p_state json, p_version integer, p_details json
) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
    UPDATE {schema}.managed_process
    SET state = p_state, version = p_version, updated_at = clock_timestamp()
    WHERE process_id = p_process_id;
    INSERT INTO {schema}.process_event (process_id, kind, details)
    VALUES (p_process_id, 'SIGNALED', p_details)
$$;
