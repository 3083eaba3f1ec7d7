-- Operators' changes of bridges; see also 12_changing.sql. Each returns NULL as refusal, or why
-- nothing was changed.

-- A bridge as JSON; NULL: there is none.
CREATE FUNCTION {schema}.bridge_settings(p_name text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'queue', b.queue, 'direction', b.direction, 'domain', b.domain, 'type', b.type,
        'reply_to', b.reply_to, 'batch_size', b.batch_size)
    FROM {schema}.bridge b WHERE b.name = p_name
$$;

-- Changes of bridges wait for each other. None locks the table: an operator's transaction that
-- lasts must not stop the moves of other bridges.
CREATE FUNCTION {schema}.begin_bridge_change() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.bridge'::regclass::oid::integer, 0);
END
$$;

-- The role of the session: within a function that runs as its owner, current_user is that.
CREATE FUNCTION {schema}.calling_role() RETURNS text
LANGUAGE sql STABLE
RETURN CASE current_setting('role') WHEN 'none' THEN session_user::text
            ELSE current_setting('role') END;

-- Whether p_next moves what p_bridge has moved: the messages, the commands, or the replies to
-- these.
CREATE FUNCTION {schema}.leads_to(p_bridge {schema}.bridge, p_next {schema}.bridge) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN p_next.direction <> p_bridge.direction AND CASE p_bridge.direction
    WHEN 'out' THEN p_next.queue = p_bridge.queue
    ELSE p_next.domain = p_bridge.domain AND coalesce(p_next.type = p_bridge.type, true)
        OR p_next.domain = p_bridge.reply_to AND coalesce(p_next.type = 'Reply', true) END;

-- The names of the bridges over which what a new bridge moves would come back to it, in their
-- order, and of the fewest; NULL: it would not.
CREATE FUNCTION {schema}.way_back(p_bridge {schema}.bridge) RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    reached {schema}.bridge[] := ARRAY[p_bridge];
    -- Of each, the index of the one that leads to it.
    origins integer[] := '{0}';
    index integer := 1;
    next {schema}.bridge;
    names text[] := '{}';
BEGIN
    WHILE index <= cardinality(reached) LOOP
        IF {schema}.leads_to(reached[index], p_bridge) THEN
            WHILE index > 1 LOOP
                names := array_prepend(reached[index].name, names);
                index := origins[index];
            END LOOP;
            RETURN names;
        END IF;
        FOR next IN
            SELECT b.* FROM {schema}.bridge b
            WHERE {schema}.leads_to(reached[index], b)
                AND NOT EXISTS (SELECT FROM unnest(reached) r WHERE r.name = b.name)
            ORDER BY b.name
        LOOP
            reached := array_append(reached, next);
            origins := array_append(origins, index);
        END LOOP;
        index := index + 1;
    END LOOP;
    RETURN NULL;
END
$$;

-- Adds a bridge. refusal: as of queue_problem, of the calling role; 'queue' (the bridge subject has
-- it in the same direction), 'name' (of another bridge), 'loop' (the bridge subject would move each
-- message back), 'reply_loop' (so would one of the two, as the answer to itself) or 'circle' (so
-- would several, whose names are in subject). In place of 'no_right', subject is the role.
CREATE FUNCTION {schema}.add_bridge(
    p_name text, p_queue text, p_direction text, p_domain text, p_type text, p_reply_to text,
    p_batch_size integer, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false,
    OUT refusal text, OUT subject text, OUT database text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'bridge', p_name, p_operator, p_reason, p_call, p_again);
    own_queue text := lower(p_queue);
    own {schema}.bridge;
    names text[];
BEGIN
    database := current_database();
    IF change.is_made THEN
        RETURN;
    END IF;
    refusal := {schema}.queue_problem(own_queue, p_direction, {schema}.calling_role());
    IF refusal IS NOT NULL THEN
        subject := {schema}.calling_role();
        RETURN;
    END IF;
    SELECT found.problem, b.name INTO refusal, subject
    FROM {schema}.bridge b
    CROSS JOIN LATERAL (VALUES (
        CASE WHEN b.queue = own_queue AND b.direction = p_direction THEN 'queue'
             WHEN b.name = p_name THEN 'name'
             WHEN b.queue <> own_queue THEN NULL
             WHEN b.domain = p_domain
                  AND coalesce(b.type, p_type, '') = coalesce(p_type, b.type, '') THEN 'loop'
             -- One of the two has it, and the other one a type or none.
             WHEN b.reply_to = p_domain AND coalesce(p_type, 'Reply') = 'Reply'
                  OR p_reply_to = b.domain AND coalesce(b.type, 'Reply') = 'Reply'
                  THEN 'reply_loop' END)) AS found (problem)
    WHERE found.problem IS NOT NULL
    ORDER BY b.name <> p_name, b.direction <> p_direction LIMIT 1;
    IF refusal IS NOT NULL THEN
        RETURN;
    END IF;
    own.name := p_name;
    own.queue := own_queue;
    own.direction := p_direction;
    own.domain := p_domain;
    own.type := p_type;
    own.reply_to := p_reply_to;
    names := {schema}.way_back(own);
    IF names IS NOT NULL THEN
        refusal := 'circle';
        subject := array_to_string(array_append(array_prepend(p_name, names), p_name), ' -> ');
        RETURN;
    END IF;
    INSERT INTO {schema}.bridge (
        name, queue, spelled, direction, domain, type, reply_to, batch_size, operator, reason)
    VALUES (
        p_name, own_queue, p_queue, p_direction, p_domain, p_type, p_reply_to, p_batch_size,
        p_operator, p_reason);
    PERFORM {schema}.end_change(change, 'BRIDGE_ADDED', ARRAY[p_domain]);
    -- Stewards read their timers, and with them that there is another bridge.
    PERFORM {schema}.wake_at(clock_timestamp());
END
$$;

-- Removes a bridge; waits for a move of it. Its messages and commands stay. refusal: 'unknown'.
CREATE FUNCTION {schema}.remove_bridge(
    p_name text, p_operator text, p_reason text,
    p_call bigint DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    change {schema}.change := {schema}.begin_change(
        'bridge', p_name, p_operator, p_reason, p_call, p_again);
BEGIN
    IF change.is_made THEN
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.bridge b WHERE b.name = p_name;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    PERFORM {schema}.end_change(change, 'BRIDGE_REMOVED', ARRAY[change.before ->> 'domain']);
    RETURN NULL;
END
$$;
