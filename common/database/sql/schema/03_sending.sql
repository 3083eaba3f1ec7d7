-- Sending: one command by enqueue; many by admit, find_full_key, identify and COPY. For unique keys
-- see 13_uniqueness.sql.

-- An id that the bus makes: 48 bits of milliseconds, so that indexes grow at their end; 8cb5,
-- the version and the bus's mark; the variant and 62 random bits (see ids.py).
CREATE FUNCTION {schema}.new_id() RETURNS uuid
LANGUAGE sql VOLATILE
RETURN (
    lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
    || '8cb5' || substr(replace(gen_random_uuid()::text, '-', ''), 17)
)::uuid;

-- Whether an id has the mark of the bus. So have 1 in 4,096 of the ids of version 8 that others
-- make.
CREATE FUNCTION {schema}.has_mark(p_id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN substr(p_id::text, 15, 4) = '8cb5';

-- Whether an id of the bus is so new that this transaction's snapshot may not show its command:
-- made at most a day before the transaction, or by a clock that is ahead.
CREATE FUNCTION {schema}.may_be_newer(p_id uuid) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN ('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint
    BETWEEN (extract(epoch FROM now() - interval '1 day') * 1000)::bigint
        AND (extract(epoch FROM clock_timestamp() + interval '1 day') * 1000)::bigint;

-- Whether p_domain takes p_count more commands. refusal: NULL, 'closed' or 'full'. depth is the
-- number of waiting commands, counted only if the domain has limits and only as far as they
-- need; oldest_age is in seconds. Locks nothing: concurrent senders can pass the limit.
CREATE FUNCTION {schema}.admit(
    p_domain text, p_count bigint,
    OUT refusal text, OUT depth bigint, OUT max_depth integer, OUT warn_depth integer,
    OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    open boolean;
    enough bigint;
BEGIN
    SELECT d.accepting, d.max_depth, d.warn_depth INTO open, max_depth, warn_depth
    FROM {schema}.domain d WHERE d.name = p_domain;
    IF NOT open THEN
        refusal := 'closed';
    END IF;
    IF refusal IS NOT NULL OR coalesce(max_depth, warn_depth) IS NULL THEN
        RETURN;
    END IF;
    enough := greatest(max_depth, warn_depth)::bigint + 1;
    SELECT count(*), extract(epoch FROM clock_timestamp() - min(since))
    INTO depth, oldest_age
    FROM (
        (SELECT r.created_at AS since FROM {schema}.ready r
         WHERE r.domain = p_domain
             AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
         LIMIT enough)
        UNION ALL
        (SELECT s.created_at FROM {schema}.scheduled s WHERE s.domain = p_domain LIMIT enough)
        UNION ALL
        (SELECT l.created_at FROM {schema}.limited l WHERE l.domain = p_domain LIMIT enough)
    ) waiting;
    IF depth + p_count > max_depth THEN
        refusal := 'full';
    END IF;
END
$$;

-- The first of these keys of which the domain takes no further commands, as many as p_counts says:
-- how many wait, and how many may. key is NULL if there is none. Counts only where the domain has a
-- limit, and only as far as it needs. What has expired does not count. Locks nothing.
CREATE FUNCTION {schema}.find_full_key(
    p_domains text[], p_keys text[], p_counts bigint[],
    OUT domain text, OUT key text, OUT depth bigint, OUT max_depth integer,
    OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT k.domain, k.key, k.count, d.max_waiting_per_key AS most
        FROM unnest(p_domains, p_keys, p_counts) k (domain, key, count)
        JOIN {schema}.domain d ON d.name = k.domain
        WHERE d.max_waiting_per_key IS NOT NULL
    LOOP
        SELECT count(*), extract(epoch FROM clock_timestamp() - min(since))
        INTO depth, oldest_age
        FROM (
            (SELECT r.created_at AS since FROM {schema}.ready r
             WHERE r.domain = wanted.domain AND r.key = wanted.key
                 AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
                 AND {schema}.has_not_expired(r.expires_at, r.claimed_at, clock_timestamp())
             ORDER BY r.domain, r.key, r.created_at
             LIMIT wanted.most)
            UNION ALL
            (SELECT s.created_at FROM {schema}.scheduled s
             WHERE s.domain = wanted.domain AND s.key = wanted.key
                 AND {schema}.has_not_expired(s.expires_at, s.claimed_at, clock_timestamp())
             ORDER BY s.domain, s.key, s.created_at
             LIMIT wanted.most)
            UNION ALL
            (SELECT l.created_at FROM {schema}.limited l
             WHERE l.domain = wanted.domain AND l.key = wanted.key
                 AND {schema}.has_not_expired(l.expires_at, l.claimed_at, clock_timestamp())
             ORDER BY l.domain, l.key, l.created_at
             LIMIT wanted.most)
        ) waiting;
        IF depth + wanted.count > wanted.most THEN
            domain := wanted.domain;
            key := wanted.key;
            max_depth := wanted.most;
            RETURN;
        END IF;
    END LOOP;
END
$$;

-- Whether a command is in any table.
CREATE FUNCTION {schema}.exists_anywhere(p_domain text, p_command_id uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    -- One statement: a row on its way between two tables is seen in one of them.
    SELECT EXISTS (SELECT FROM {schema}.ready
                   WHERE domain = p_domain AND command_id = p_command_id)
        OR EXISTS (SELECT FROM {schema}.scheduled
                   WHERE domain = p_domain AND command_id = p_command_id)
        OR EXISTS (SELECT FROM {schema}.limited
                   WHERE domain = p_domain AND command_id = p_command_id)
        OR EXISTS (SELECT FROM {schema}.troubleshooting
                   WHERE domain = p_domain AND command_id = p_command_id)
        OR EXISTS (SELECT FROM {schema}.finished
                   WHERE domain = p_domain AND command_id = p_command_id)
$$;

-- Takes ids for p_call, all or none. Returns each id that another call has ('duplicate'), or one
-- row if this call took them before ('repeated'). Waits for a transaction that inserts the same
-- id. Most ids of the bus are not in identity: where a caller brings one (p_brought), the tables
-- are searched for it.
CREATE FUNCTION {schema}.identify(
    p_domains text[], p_command_ids uuid[], p_call bigint, p_brought boolean
) RETURNS TABLE (domain text, command_id uuid, refusal text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    taken bigint;
BEGIN
    IF p_brought AND current_setting('transaction_isolation') <> 'read committed'
        AND EXISTS (SELECT FROM unnest(p_domains, p_command_ids) w (domain, command_id)
                    WHERE {schema}.has_mark(w.command_id) AND {schema}.may_be_newer(w.command_id)
                        AND NOT EXISTS (SELECT FROM {schema}.identity i
                                        WHERE i.domain = w.domain
                                            AND i.command_id = w.command_id))
    THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE =
            'an id that the bus made can be sent again only at READ COMMITTED: an older '
            'snapshot does not show whether the command is there';
    END IF;
    -- Sorted, so that two calls with the same ids cannot deadlock.
    INSERT INTO {schema}.identity (domain, command_id, call)
    SELECT w.domain, w.command_id, p_call
    FROM unnest(p_domains, p_command_ids) w (domain, command_id)
    WHERE CASE WHEN p_brought AND {schema}.has_mark(w.command_id)
               THEN NOT {schema}.exists_anywhere(w.domain, w.command_id) ELSE true END
    ORDER BY w.domain COLLATE "C", w.command_id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken = cardinality(p_command_ids) THEN
        RETURN;
    END IF;
    -- A second statement: its snapshot shows what the first one waited for.
    RETURN QUERY
        SELECT w.domain, w.command_id, 'duplicate'
        FROM unnest(p_domains, p_command_ids) w (domain, command_id)
        LEFT JOIN {schema}.identity i ON i.domain = w.domain AND i.command_id = w.command_id
        WHERE i.call IS DISTINCT FROM p_call;
    IF NOT FOUND THEN
        RETURN QUERY SELECT p_domains[1], p_command_ids[1], 'repeated';
    END IF;
END
$$;

-- Whether a call has been carried out before: it is repeated if its connection dies, while the
-- first try may still run. The call's advisory lock makes the two take turns, and the later one
-- finds the other's trace in identity or in the tables.
CREATE FUNCTION {schema}.already_sent(
    p_domain text, p_command_id uuid, p_brought boolean, p_call bigint, p_again boolean
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(p_call);
    IF p_again AND NOT p_brought THEN
        RETURN {schema}.exists_anywhere(p_domain, p_command_id)
            OR EXISTS (SELECT FROM {schema}.identify(
                ARRAY[p_domain], ARRAY[p_command_id], p_call, false));
    END IF;
    IF p_again = p_brought THEN
        RETURN EXISTS (SELECT FROM {schema}.identity i
                       WHERE i.domain = p_domain AND i.command_id = p_command_id
                           AND i.call = p_call);
    END IF;
    RETURN false;
END
$$;

-- Puts one command into ready or, if it is due later, into scheduled. refusal: NULL (accepted),
-- 'closed', 'full', 'key_full' (depth and max_depth are the key's), 'duplicate', 'early' (it would
-- expire before it is due) or 'repeated' (accepted when this call was tried before); nothing is
-- written unless it is NULL. p_call is NULL in a caller's transaction: there identity also takes
-- the bus's ids, because the caller learns them before the commit and may send one again. p_delay
-- and p_expires are in seconds.
CREATE FUNCTION {schema}.enqueue(
    p_domain text, p_type text, p_data json, p_command_id uuid, p_own boolean,
    p_priority integer, p_delay double precision, p_run_at timestamptz, p_correlation_id uuid,
    p_reply_to text, p_max_attempts integer, p_call bigint, p_again boolean,
    p_caller bigint DEFAULT NULL, p_key text DEFAULT NULL, p_unique_key text DEFAULT NULL,
    p_expires double precision DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL,
    p_headers json DEFAULT NULL,
    OUT refusal text, OUT depth bigint, OUT max_depth integer, OUT warn_depth integer,
    OUT oldest_age double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    due timestamptz := coalesce(p_run_at, clock_timestamp() + make_interval(secs => p_delay));
    expires timestamptz;
    locked text;
    was_sent boolean;
    has_settings boolean;
    full_key record;
BEGIN
    IF p_again THEN
        was_sent := {schema}.already_sent(p_domain, p_command_id, p_own, p_call, true);
    ELSIF p_call IS NOT NULL AND NOT p_own THEN
        -- As in already_sent; an assignment costs less than PERFORM or a function.
        locked := pg_advisory_xact_lock(p_call);
    END IF;
    SELECT coalesce(was_sent, EXISTS (SELECT FROM {schema}.identity i
                                        WHERE i.domain = p_domain
                                            AND i.command_id = p_command_id AND i.call = p_call)),
        EXISTS (SELECT FROM {schema}.domain d WHERE d.name = p_domain)
    INTO was_sent, has_settings;
    IF was_sent THEN
        refusal := 'repeated';
        RETURN;
    END IF;
    IF p_expires IS NOT NULL OR p_expires_at IS NOT NULL THEN
        expires := coalesce(p_expires_at, clock_timestamp() + make_interval(secs => p_expires));
        IF expires <= due THEN
            refusal := 'early';
            RETURN;
        END IF;
        PERFORM {schema}.wake_at(expires);
    END IF;
    IF has_settings THEN
        SELECT a.refusal, a.depth, a.max_depth, a.warn_depth, a.oldest_age
        INTO refusal, depth, max_depth, warn_depth, oldest_age
        FROM {schema}.admit(p_domain, 1) a;
        IF refusal IS NULL AND p_key IS NOT NULL THEN
            SELECT f.* INTO full_key
            FROM {schema}.find_full_key(ARRAY[p_domain], ARRAY[p_key], ARRAY[1]) f;
            IF full_key.key IS NOT NULL THEN
                refusal := 'key_full';
                depth := full_key.depth;
                max_depth := full_key.max_depth;
                oldest_age := full_key.oldest_age;
            END IF;
        END IF;
    END IF;
    IF refusal IS NULL AND (p_own OR p_call IS NULL) THEN
        SELECT i.refusal INTO refusal
        FROM {schema}.identify(ARRAY[p_domain], ARRAY[p_command_id],
                      coalesce(p_call, hashtextextended(gen_random_uuid()::text, 0)), p_own) i;
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN;
    END IF;
    IF due > clock_timestamp() THEN
        INSERT INTO {schema}.scheduled (domain, priority, command_id, type, data, correlation_id,
                               reply_to, max_attempts, due_at, caller, key, unique_key,
                               expires_at, headers)
        VALUES (p_domain, p_priority, p_command_id, p_type, p_data, p_correlation_id,
                p_reply_to, p_max_attempts, due, p_caller, p_key, p_unique_key, expires,
                p_headers);
    ELSE
        INSERT INTO {schema}.ready (domain, priority, command_id, type, data, correlation_id,
                           reply_to, max_attempts, caller, key, unique_key, expires_at,
                           headers)
        VALUES (p_domain, p_priority, p_command_id, p_type, p_data, p_correlation_id,
                p_reply_to, p_max_attempts, p_caller, p_key, p_unique_key, expires, p_headers);
    END IF;
END
$$;

-- Notes what a hook changed in commands that this transaction has sent.
CREATE FUNCTION {schema}.note_changes(
    p_domains text[], p_command_ids uuid[], p_changes json[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    noted bigint;
BEGIN
    INSERT INTO {schema}.event (domain, command_id, kind, details)
    SELECT c.domain, c.command_id, 'CHANGED_ON_SEND', c.changes
    FROM unnest(p_domains, p_command_ids, p_changes) c (domain, command_id, changes)
    WHERE octet_length(c.changes::text) <= 20000 AND (
        EXISTS (SELECT FROM {schema}.ready r
                WHERE r.domain || '' = c.domain AND r.command_id = c.command_id
                    AND r.created_at >= now())
        OR EXISTS (SELECT FROM {schema}.scheduled s
                   WHERE s.domain = c.domain AND s.command_id = c.command_id
                       AND s.created_at >= now())
        OR EXISTS (SELECT FROM {schema}.limited l
                   WHERE l.domain || '' = c.domain AND l.command_id = c.command_id
                       AND l.created_at >= now()));
    GET DIAGNOSTICS noted = ROW_COUNT;
    RETURN noted;
END
$$;

-- When this transaction sent a command; NULL if another one did. Sees what the statement that calls
-- it has sent.
CREATE FUNCTION {schema}.sent_at(p_domain text, p_command_id uuid) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    sent timestamptz;
BEGIN
    -- Not one statement, as most are in the first table.
    SELECT r.created_at INTO sent FROM {schema}.ready r
    WHERE r.domain || '' = p_domain AND r.command_id = p_command_id AND r.created_at >= now();
    IF NOT FOUND THEN
        SELECT s.created_at INTO sent FROM {schema}.scheduled s
        WHERE s.domain = p_domain AND s.command_id = p_command_id AND s.created_at >= now();
    END IF;
    IF NOT FOUND THEN
        SELECT l.created_at INTO sent FROM {schema}.limited l
        WHERE l.domain || '' = p_domain AND l.command_id = p_command_id AND l.created_at >= now();
    END IF;
    RETURN sent;
END
$$;
