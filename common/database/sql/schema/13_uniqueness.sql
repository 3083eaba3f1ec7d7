-- Unique keys: the command that holds one, and how a send takes it. What ends a command does not
-- know of its key: the next sender of the key finds out whether it is held, and a steward removes
-- the rows of those that are not.

CREATE TABLE {schema}.unique_command (
    -- A new one whenever a command takes the key.
    id bigint GENERATED ALWAYS AS IDENTITY,
    -- Holds the key until then, whatever becomes of it, unless it is canceled; NULL: until it ends
    -- or, with until_started, is claimed.
    held_until {schema}.finite_time,
    command_id uuid NOT NULL,
    until_started boolean NOT NULL,
    domain {schema}.name NOT NULL,
    unique_key {schema}.key NOT NULL,
    PRIMARY KEY (domain, unique_key)
);

-- Whether a command with this key has not ended or, with p_waits, waits and was never claimed.
CREATE FUNCTION {schema}.is_there(
    p_domain text, p_unique_key text, p_command_id uuid, p_waits boolean
) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    -- One statement: see exists_anywhere. Another command may have the same id later, without the
    -- key.
    SELECT EXISTS (SELECT FROM {schema}.ready r
                   WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
                       AND r.unique_key = p_unique_key AND (r.claimed_at IS NULL OR NOT p_waits))
        OR EXISTS (SELECT FROM {schema}.scheduled s
                   WHERE s.domain = p_domain AND s.command_id = p_command_id
                       AND s.unique_key = p_unique_key AND (s.claimed_at IS NULL OR NOT p_waits))
        OR EXISTS (SELECT FROM {schema}.limited l
                   WHERE l.domain || '' = p_domain AND l.command_id = p_command_id
                       AND l.unique_key = p_unique_key AND (l.claimed_at IS NULL OR NOT p_waits))
        OR EXISTS (SELECT FROM {schema}.troubleshooting t
                   WHERE t.domain = p_domain AND t.command_id = p_command_id
                       AND t.unique_key = p_unique_key AND NOT p_waits)
$$;

-- Whether a command with this key has expired without a start, and is still to be canceled.
CREATE FUNCTION {schema}.has_expired(p_domain text, p_unique_key text, p_command_id uuid)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM {schema}.ready r
                   WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
                       AND r.unique_key = p_unique_key AND r.claimed_at IS NULL
                       AND r.expires_at <= clock_timestamp())
        OR EXISTS (SELECT FROM {schema}.scheduled s
                   WHERE s.domain = p_domain AND s.command_id = p_command_id
                       AND s.unique_key = p_unique_key AND s.claimed_at IS NULL
                       AND s.expires_at <= clock_timestamp())
        OR EXISTS (SELECT FROM {schema}.limited l
                   WHERE l.domain || '' = p_domain AND l.command_id = p_command_id
                       AND l.unique_key = p_unique_key AND l.claimed_at IS NULL
                       AND l.expires_at <= clock_timestamp())
$$;

-- Whether the command of a row holds its key. One that has expired holds it until a steward or the
-- next sender of the key cancels it.
CREATE FUNCTION {schema}.holds_key(p_row {schema}.unique_command) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_row.held_until IS NULL THEN {schema}.is_there(
            p_row.domain, p_row.unique_key, p_row.command_id, p_row.until_started)
        ELSE p_row.held_until > clock_timestamp() AND NOT EXISTS (
            SELECT FROM {schema}.finished f
            WHERE f.domain = p_row.domain AND f.command_id = p_row.command_id
                AND f.unique_key = p_row.unique_key AND f.status = 'CANCELED')
        END
$$;

-- What is wrong with the arguments of a send with a unique key; NULL: nothing.
CREATE FUNCTION {schema}.unique_problem(
    p_unique text, p_on_conflict text, p_unique_until text
) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN p_unique IS NULL AND (p_on_conflict <> 'reject' OR p_unique_until <> 'finished')
        THEN 'p_on_conflict and p_unique_until go with p_unique'
    WHEN length(p_unique) NOT BETWEEN 1 AND 200
        THEN 'p_unique must be text of 1 to 200 characters, and has ' || length(p_unique)
    WHEN p_on_conflict IS NULL OR p_on_conflict NOT IN ('reject', 'existing', 'replace')
        THEN 'p_on_conflict must be reject, existing or replace'
    WHEN p_unique_until IN ('finished', 'started') THEN NULL
    WHEN p_unique_until IS NULL OR p_unique_until !~ '^[0-9]{1,10}([.][0-9]{1,9})?$'
        OR p_unique_until::numeric NOT BETWEEN 0.001 AND 3155760000
        THEN 'p_unique_until must be finished, started or a number of seconds, up to 100 years'
END;

-- Lets a command take a unique key of its domain, in the transaction that sends it. Returns NULL or
-- the id of the command that holds the key: it was not to be replaced, or has begun. Waits for a
-- transaction that has sent a command with the same key.
CREATE FUNCTION {schema}.take_unique(
    p_domain text, p_unique text, p_command_id uuid, p_on_conflict text, p_unique_until text
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    problem text := {schema}.unique_problem(p_unique, p_on_conflict, p_unique_until);
    until_start boolean := p_unique_until = 'started';
    period interval;
    holder record;
BEGIN
    IF problem IS NOT NULL OR p_unique IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = coalesce(problem, 'p_unique is missing');
    END IF;
    IF p_unique_until NOT IN ('finished', 'started') THEN
        period := make_interval(secs => p_unique_until::double precision);
    END IF;
    -- Repeated where another session has moved the holder or has taken the key meanwhile. Each
    -- statement sees what the one before waited for.
    FOR attempt IN 1..1000 LOOP
        INSERT INTO {schema}.unique_command (
            domain, unique_key, command_id, until_started, held_until)
        VALUES (p_domain, p_unique, p_command_id, until_start, clock_timestamp() + period)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT u.id, u.command_id, {schema}.holds_key(u) AS holds,
            {schema}.is_there(u.domain, u.unique_key, u.command_id, true) AS waits,
            {schema}.has_expired(u.domain, u.unique_key, u.command_id) AS has_expired
        INTO holder
        FROM {schema}.unique_command u WHERE u.domain = p_domain AND u.unique_key = p_unique;
        CONTINUE WHEN NOT FOUND;
        IF holder.holds AND NOT holder.has_expired
            AND NOT (p_on_conflict = 'replace' AND holder.waits)
        THEN
            RETURN holder.command_id;
        END IF;
        BEGIN
            -- The command first, as a transaction that cancels it and sends another one locks them.
            IF holder.holds AND NOT {schema}.lock_waiting(p_domain, p_unique, holder.command_id)
            THEN
                RAISE SQLSTATE 'CMDBU';
            END IF;
            UPDATE {schema}.unique_command SET
                id = DEFAULT, command_id = p_command_id, until_started = until_start,
                held_until = clock_timestamp() + period
            WHERE domain = p_domain AND unique_key = p_unique AND id = holder.id;
            IF NOT FOUND THEN
                RAISE SQLSTATE 'CMDBU';
            END IF;
            IF holder.holds THEN
                PERFORM {schema}.cancel_ids(
                    p_domain, ARRAY[holder.command_id], false,
                    CASE WHEN holder.has_expired THEN 'it expired before a worker started it'
                        ELSE 'replaced by command ' || p_command_id END, NULL, NULL,
                    CASE WHEN holder.has_expired THEN 'EXPIRED' ELSE 'REPLACED' END);
            END IF;
            RETURN NULL;
        EXCEPTION WHEN SQLSTATE 'CMDBU' THEN
            NULL;  -- Unlocks what was locked in vain: two that hold such locks could deadlock.
        END;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = format(
        'unique key %s of domain %s changes hands all the time: send again', p_unique, p_domain);
END
$$;

-- The same for many, in the order of their keys, so that two calls cannot deadlock. Returns which
-- positions are refused, and the commands that hold their keys.
CREATE FUNCTION {schema}.take_unique_keys(
    p_domains text[], p_unique_keys text[], p_command_ids uuid[], p_on_conflict text[],
    p_unique_until text[]
) RETURNS TABLE (nth bigint, holder uuid)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    request record;
BEGIN
    FOR request IN
        SELECT * FROM unnest(
            p_domains, p_unique_keys, p_command_ids, p_on_conflict, p_unique_until)
            WITH ORDINALITY r (domain, unique_key, command_id, on_conflict, until, nth)
        ORDER BY r.domain COLLATE "C", r.unique_key COLLATE "C"
    LOOP
        holder := {schema}.take_unique(
            request.domain, request.unique_key, request.command_id, request.on_conflict,
            request.until);
        IF holder IS NOT NULL THEN
            nth := request.nth;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Locks a command with this key that waits and was never claimed. False if it is none any longer.
CREATE FUNCTION {schema}.lock_waiting(p_domain text, p_unique_key text, p_command_id uuid)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM {schema}.ready r
    WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
        AND r.unique_key = p_unique_key AND r.claimed_at IS NULL
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM FROM {schema}.scheduled s
        WHERE s.domain = p_domain AND s.command_id = p_command_id
            AND s.unique_key = p_unique_key AND s.claimed_at IS NULL
        FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        PERFORM FROM {schema}.limited l
        WHERE l.domain || '' = p_domain AND l.command_id = p_command_id
            AND l.unique_key = p_unique_key AND l.claimed_at IS NULL
        FOR UPDATE;
    END IF;
    RETURN FOUND;
END
$$;

-- Sends a command with a unique key, as enqueue does. refusal may also be 'held': holder is the
-- command that has the key, and nothing is written.
CREATE FUNCTION {schema}.enqueue_unique(
    p_domain text, p_type text, p_data json, p_command_id uuid, p_own boolean,
    p_priority integer, p_delay double precision, p_run_at timestamptz, p_correlation_id uuid,
    p_reply_to text, p_max_attempts integer, p_call bigint, p_again boolean,
    p_unique_key text, p_on_conflict text, p_unique_until text, p_caller bigint DEFAULT NULL,
    p_key text DEFAULT NULL, p_expires double precision DEFAULT NULL,
    p_expires_at timestamptz DEFAULT NULL, p_headers json DEFAULT NULL,
    OUT refusal text, OUT depth bigint, OUT max_depth integer, OUT warn_depth integer,
    OUT oldest_age double precision, OUT holder uuid
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    -- As already_sent, which enqueue calls: a repetition is not refused by its own first try.
    PERFORM pg_advisory_xact_lock(p_call) WHERE p_call IS NOT NULL;
    IF EXISTS (SELECT FROM {schema}.identity i
               WHERE i.domain = p_domain AND i.command_id = p_command_id AND i.call = p_call)
        OR (p_again AND NOT p_own AND {schema}.exists_anywhere(p_domain, p_command_id))
    THEN
        refusal := 'repeated';
        RETURN;
    END IF;
    BEGIN
        holder := {schema}.take_unique(
            p_domain, p_unique_key, p_command_id, p_on_conflict, p_unique_until);
        IF holder IS NOT NULL THEN
            refusal := 'held';
        ELSE
            SELECT e.refusal, e.depth, e.max_depth, e.warn_depth, e.oldest_age
            INTO refusal, depth, max_depth, warn_depth, oldest_age
            FROM {schema}.enqueue(
                p_domain, p_type, p_data, p_command_id, p_own, p_priority, p_delay, p_run_at,
                p_correlation_id, p_reply_to, p_max_attempts, p_call, p_again, p_caller,
                p_key, p_unique_key, p_expires, p_expires_at, p_headers) e;
        END IF;
        IF refusal IS NOT NULL THEN
            RAISE SQLSTATE 'CMDBU';
        END IF;
    EXCEPTION WHEN SQLSTATE 'CMDBU' THEN
        NULL;  -- The key is as it was, and so is the command that was to be replaced.
    END;
    IF refusal IS NOT NULL AND p_again AND NOT p_own THEN
        -- As in already_sent: a first try that comes late finds it.
        PERFORM {schema}.identify(ARRAY[p_domain], ARRAY[p_command_id], p_call, false);
    END IF;
END
$$;

-- Removes the rows of keys that no command holds: of the p_size next ones after (p_domain,
-- p_unique_key). domain is NULL when none is left to look at. Skips locked rows.
CREATE FUNCTION {schema}.retain_unique(
    p_size integer, p_domain text, p_unique_key text,
    OUT removed bigint, OUT domain text, OUT unique_key text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_column
BEGIN
    WITH seen AS MATERIALIZED (
        SELECT u AS held FROM {schema}.unique_command u
        WHERE (u.domain, u.unique_key) > (p_domain, p_unique_key)
        ORDER BY u.domain, u.unique_key
        LIMIT p_size
    ), gone AS (
        DELETE FROM {schema}.unique_command WHERE ctid = ANY (ARRAY(
            SELECT u.ctid
            FROM seen s
            JOIN {schema}.unique_command u
                ON u.domain = (s.held).domain AND u.unique_key = (s.held).unique_key
                    -- Not if another command has taken the key since.
                    AND u.id = (s.held).id
            WHERE NOT {schema}.holds_key(s.held)
            FOR UPDATE OF u SKIP LOCKED))
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), last.domain, last.unique_key
    INTO removed, domain, unique_key
    FROM (SELECT) one
    LEFT JOIN LATERAL (
        SELECT (s.held).domain, (s.held).unique_key FROM seen s
        ORDER BY (s.held).domain DESC, (s.held).unique_key DESC LIMIT 1) last ON true;
END
$$;
