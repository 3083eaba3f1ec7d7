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
    p_headers json DEFAULT NULL,
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
                          p_process_id, NULL, NULL, p_call, false, p_headers => p_headers) e;
    IF refusal IS NULL AND p_joins THEN
        refusal := {schema}.add_to_batch(p_batch_id, 1);
        IF refusal IS NOT NULL THEN
            DELETE FROM {schema}.ready r
            WHERE r.domain || '' = p_domain AND r.command_id = p_start_id;
            DELETE FROM {schema}.limited l
            WHERE l.domain || '' = p_domain AND l.command_id = p_start_id;
        END IF;
    END IF;
    IF refusal IS NOT NULL THEN
        DELETE FROM {schema}.managed_process p WHERE p.process_id = p_process_id;
    END IF;
END
$$;

-- Sends a signal to a process. status and domain are the process's, NULL if it is unknown; one that
-- is over gets no signal. The rest is that of enqueue. Leaves an event if an operator is named.
CREATE FUNCTION {schema}.signal_process(
    p_process_id uuid, p_data json, p_signal_id uuid, p_call bigint, p_again boolean,
    p_operator {schema}.remark DEFAULT NULL, p_reason {schema}.remark DEFAULT NULL,
    p_headers json DEFAULT NULL,
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
                          NULL, p_process_id, NULL, NULL, p_call, p_again,
                          p_headers => p_headers) e;
    IF refusal IS NULL AND p_operator IS NOT NULL THEN
        INSERT INTO {schema}.process_event (process_id, call, kind, operator, message, details)
        VALUES (p_process_id, p_call, 'SIGNAL_SENT', p_operator, p_reason,
                json_build_object('name', p_data -> 'name'));
    END IF;
END
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
