-- Process managers: the processes, the commands that they have sent, and what was done to them.

-- A process. Each transaction that moves it on writes its state together with the command that it
-- awaits next, and locks its row first. No indexed column changes before its end.
CREATE TABLE {schema}.managed_process (
    process_id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    -- The command that started it: a call that is repeated brings the same.
    start_id uuid NOT NULL,
    -- The command that it awaits, or the batch if awaited_domain is NULL; and the command that
    -- fires at the deadline of that.
    awaited_id uuid,
    timer_id uuid,
    -- Of the batch that it is part of.
    batch_id uuid,
    -- The number of its latest row in process_step, and of the step that this one undoes.
    number integer NOT NULL DEFAULT 0,
    undoing integer,
    -- That of the state, as its manager counts.
    version integer NOT NULL,
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    awaited_domain text COLLATE "C",
    status text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    -- Its batch has counted it, which a later retry does not change.
    counted boolean NOT NULL DEFAULT false,
    -- COMPENSATED or CANCELED once it has failed: its status after the last compensation.
    ending text,
    step text,
    error text,
    state {schema}.payload NOT NULL
) WITH (fillfactor = 50);

-- Lists the newest first.
CREATE INDEX managed_process_newest ON {schema}.managed_process (created_at);

-- Counts and lists those that are not over.
CREATE INDEX managed_process_unfinished ON {schema}.managed_process (created_at)
    WHERE finished_at IS NULL;

-- Finds the processes of a batch.
CREATE INDEX managed_process_batch ON {schema}.managed_process (batch_id)
    WHERE batch_id IS NOT NULL;

-- For retention.
CREATE INDEX managed_process_finished ON {schema}.managed_process (domain, finished_at)
    WHERE finished_at IS NOT NULL;

-- What a process has sent: a row for each step and for each compensation. The command_id and type
-- of a step of several commands are those of a batch, whose domain is the process's.
CREATE TABLE {schema}.process_step (
    process_id uuid NOT NULL,
    sent_at timestamptz NOT NULL,
    received_at timestamptz,
    deadline_at timestamptz,
    command_id uuid NOT NULL,
    number integer NOT NULL,
    -- The number of the step that this one undoes.
    undoes integer,
    step text NOT NULL,
    domain text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    -- Of its reply: SUCCESS, FAILED or CANCELED, and why.
    outcome text,
    error text,
    -- Of a step: SENT, SUCCESS, FAILED or CANCELED by its compensation, SKIPPED without one.
    undone text,
    PRIMARY KEY (process_id, number)
) WITH (fillfactor = 70);

-- Signals, deadlines that fired, and what operators did.
CREATE TABLE {schema}.process_event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    process_id uuid NOT NULL,
    -- The operator's call that left it: the same call repeated does nothing.
    call bigint,
    kind text COLLATE "C" NOT NULL,
    operator text,
    message text,
    details json,
    PRIMARY KEY (process_id, id)
);

-- Finds the commands to processes, replies among them, that need an operator.
CREATE INDEX troubleshooting_process ON {schema}.troubleshooting (correlation_id)
    WHERE type = 'Reply' OR starts_with(type, 'process:');

-- One row for each process. That it waits for an operator is seen, and not written: the command
-- that it awaits is in troubleshooting, or one that its manager could not handle.
CREATE VIEW {schema}.process AS
SELECT p.process_id, p.domain::text AS domain, p.type::text AS type,
    CASE WHEN p.finished_at IS NULL AND (
        EXISTS (SELECT FROM {schema}.troubleshooting t
                WHERE t.domain = p.awaited_domain AND t.command_id = p.awaited_id)
        OR EXISTS (SELECT FROM {schema}.troubleshooting t
                   WHERE p.awaited_domain IS NULL AND t.batch_id = p.awaited_id)
        OR EXISTS (SELECT FROM {schema}.troubleshooting t
                   WHERE t.correlation_id = p.process_id AND t.domain = p.domain::text
                       AND (t.type = 'Reply' OR starts_with(t.type, 'process:')))
        -- The end of a list has the id of its batch. (Apart, as each EXISTS alone can be hashed.)
        OR EXISTS (SELECT FROM {schema}.troubleshooting t
                   WHERE t.correlation_id = p.awaited_id AND t.domain = p.domain::text
                       AND (t.type = 'Reply' OR starts_with(t.type, 'process:'))))
    THEN 'WAITING_FOR_TSQ' ELSE p.status END AS status,
    p.step, p.state::json AS state, p.error, p.batch_id, p.created_at, p.updated_at,
    p.finished_at
FROM {schema}.managed_process p;

-- Starts a process: its row, and a command to its domain. refusal and the rest are those of
-- enqueue; 'duplicate': the process's id is taken; in a batch that it joins also those of
-- add_to_batch. Nothing is written unless refusal is NULL. Waits for a transaction that starts a
-- process of the same id.
CREATE FUNCTION {schema}.start_process(
    p_process_id uuid, p_domain text, p_type text, p_state json, p_version integer,
    p_start_id uuid, p_call bigint, p_batch_id uuid, p_joins boolean,
    OUT refusal text, OUT depth bigint, OUT max_depth integer, OUT warn_depth integer,
    OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    INSERT INTO {schema}.managed_process (
        process_id, start_id, batch_id, version, domain, type, state)
    VALUES (p_process_id, p_start_id, p_batch_id, p_version, p_domain, p_type, p_state)
    ON CONFLICT (process_id) DO NOTHING;
    IF NOT FOUND THEN
        refusal := CASE WHEN EXISTS (
            SELECT FROM {schema}.managed_process p
            WHERE p.process_id = p_process_id AND p.start_id = p_start_id)
        THEN 'repeated' ELSE 'duplicate' END;
        RETURN;
    END IF;
    SELECT e.refusal, e.depth, e.max_depth, e.warn_depth, e.oldest_age
    INTO refusal, depth, max_depth, warn_depth, oldest_age
    FROM {schema}.enqueue(p_domain, 'process:start', 'null', p_start_id, false, 5, NULL, NULL,
                          p_process_id, NULL, NULL, p_call, false) e;
    IF refusal IS NULL AND p_joins THEN
        refusal := {schema}.add_to_batch(p_batch_id, 1);
        IF refusal IS NOT NULL THEN
            DELETE FROM {schema}.ready r
            WHERE r.domain || '' = p_domain AND r.command_id = p_start_id;
        END IF;
    END IF;
    IF refusal IS NOT NULL THEN
        DELETE FROM {schema}.managed_process p WHERE p.process_id = p_process_id;
    END IF;
END
$$;

-- Sends a signal to a process. status and domain are the process's, NULL if it is unknown; one that
-- is over gets no signal. The rest is that of enqueue.
CREATE FUNCTION {schema}.signal_process(
    p_process_id uuid, p_data json, p_signal_id uuid, p_call bigint, p_again boolean,
    OUT status text, OUT domain text, OUT refusal text, OUT depth bigint,
    OUT max_depth integer, OUT warn_depth integer, OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    SELECT p.status, p.domain INTO status, domain
    FROM {schema}.managed_process p WHERE p.process_id = p_process_id;
    IF status IN ('COMPLETED', 'COMPENSATED', 'FAILED', 'CANCELED') OR status IS NULL THEN
        RETURN;
    END IF;
    SELECT e.refusal, e.depth, e.max_depth, e.warn_depth, e.oldest_age
    INTO refusal, depth, max_depth, warn_depth, oldest_age
    FROM {schema}.enqueue(domain, 'process:signal', p_data, p_signal_id, false, 5, NULL,
                          NULL, p_process_id, NULL, NULL, p_call, p_again) e;
END
$$;

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
-- command that it sends looks whether the batch is over: two processes that end at the same time
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
    p_max_attempts integer[], p_deadlines double precision[], p_new_timer_ids uuid[]
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
                    p_max_attempts, p_deadlines, p_new_timer_ids)
            o (process_id, number, status, step, undoing, state, version, ending, error, outcome,
               problem, to_domain, type, data, command_id, priority, delay, run_at, max_attempts,
               deadline, timer_id)
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
                                    reply_to, max_attempts)
        SELECT to_domain, priority, command_id, type, data, process_id, p_domain, max_attempts
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
    -- Apart: an insert fires its triggers for no rows, too.
    IF p_delays IS NOT NULL OR p_run_at IS NOT NULL THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                                        reply_to, max_attempts, due_at)
        SELECT o.to_domain, o.priority, o.command_id, o.type, o.data, o.process_id, p_domain,
            o.max_attempts, due.at
        FROM unnest(p_process_ids, p_to_domains, p_types, p_data, p_command_ids, p_priorities,
                    p_delays, p_run_at, p_max_attempts)
            o (process_id, to_domain, type, data, command_id, priority, delay, run_at,
               max_attempts),
            coalesce(o.run_at, present + make_interval(secs => o.delay)) due (at)
        WHERE o.to_domain IS NOT NULL AND due.at > present;
    END IF;
    IF p_new_timer_ids IS NOT NULL THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                                        due_at)
        SELECT p_domain, 0, o.timer_id, 'process:deadline',
            json_build_object('number', o.number + 1), o.process_id,
            present + make_interval(secs => o.deadline)
        FROM unnest(p_process_ids, p_numbers, p_deadlines, p_new_timer_ids)
            o (process_id, number, deadline, timer_id)
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
                  WHERE s.batch_id = p_batch_id) c
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
-- nothing of it lands any more; the reply moves the process on. False if it has ended by itself or
-- is unknown.
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

-- Lets the fleet look at a process whose reply may never come.
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

-- Removes up to p_size processes that their domains do not keep any longer, with their steps and
-- events, and returns their number. Skips locked rows.
CREATE FUNCTION {schema}.retain_processes(p_size integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    present constant timestamptz := clock_timestamp();
    removed bigint;
BEGIN
    -- A domain at a time: the processes that another one keeps are not read.
    WITH RECURSIVE found (domain) AS (
        SELECT min(p.domain::text) FROM {schema}.managed_process p WHERE p.finished_at IS NOT NULL
        UNION ALL
        SELECT (SELECT min(p.domain::text) FROM {schema}.managed_process p
                WHERE p.finished_at IS NOT NULL AND p.domain::text > f.domain)
        FROM found f WHERE f.domain IS NOT NULL
    ), gone AS (
        DELETE FROM {schema}.managed_process WHERE process_id = ANY (ARRAY(
            SELECT old.process_id
            FROM found f LEFT JOIN {schema}.domain d ON d.name = f.domain, LATERAL (
                SELECT p.process_id FROM {schema}.managed_process p
                WHERE p.domain = f.domain AND p.finished_at <= present
                    - greatest(interval '1 minute', coalesce(d.keep, interval '7 days'))
                ORDER BY p.finished_at
                LIMIT p_size
                FOR UPDATE SKIP LOCKED) old
            LIMIT p_size))
        RETURNING process_id
    ), steps AS (
        DELETE FROM {schema}.process_step s USING gone g WHERE s.process_id = g.process_id
    ), events AS (
        DELETE FROM {schema}.process_event e USING gone g WHERE e.process_id = g.process_id
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END
$$;
