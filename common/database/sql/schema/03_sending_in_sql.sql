-- Sending from SQL.

-- What is wrong with headers, in the words of headers.py; NULL: nothing.
CREATE FUNCTION {schema}.headers_problem(p_headers json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    header record;
    count integer := 0;
BEGIN
    IF p_headers IS NULL THEN
        RETURN NULL;
    ELSIF json_typeof(p_headers) <> 'object' THEN
        RETURN 'p_headers must be an object of names and texts, not '
            || CASE json_typeof(p_headers) WHEN 'array' THEN 'an array' WHEN 'null' THEN 'null'
                    ELSE 'a ' || json_typeof(p_headers) END;
    ELSIF octet_length(p_headers::text) > 8192 THEN
        RETURN format('p_headers has %s bytes: at most 8192 are taken',
                      octet_length(p_headers::text));
    END IF;
    FOR header IN SELECT h.key AS name, h.value FROM json_each(p_headers) h LOOP
        count := count + 1;
        IF header.name !~ '^[A-Za-z][A-Za-z0-9_.-]{0,99}$' THEN
            RETURN 'the name of a header in p_headers must be a letter and up to 99 more of '
                'A-Z a-z 0-9 _ . - (ASCII), not ' || to_json(left(header.name, 120));
        ELSIF json_typeof(header.value) <> 'string' OR length(header.value #>> '{}') > 4000 THEN
            RETURN format('header %s in p_headers must be text of at most 4000 characters',
                          header.name);
        END IF;
    END LOOP;
    RETURN CASE WHEN count > 32 THEN
        format('p_headers has %s headers: at most 32 are taken', count) END;
END
$$;

-- Sends a command, for any SQL client, in its transaction. A day of p_delay and p_expires has 24
-- hours in every time zone.
CREATE FUNCTION {schema}.send(
    p_domain text, p_type text, p_data jsonb DEFAULT NULL, p_command_id uuid DEFAULT NULL,
    p_priority integer DEFAULT 5, p_delay interval DEFAULT NULL,
    p_correlation_id uuid DEFAULT NULL, p_reply_to text DEFAULT NULL,
    p_max_attempts integer DEFAULT NULL, p_key text DEFAULT NULL, p_unique text DEFAULT NULL,
    p_on_conflict text DEFAULT 'reject', p_unique_until text DEFAULT 'finished',
    p_expires interval DEFAULT NULL, p_headers json DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    command_id uuid := coalesce(p_command_id, {schema}.new_id());
    data json := coalesce(p_data, 'null')::json;
    present timestamp := clock_timestamp() AT TIME ZONE 'UTC';
    run_at timestamptz;
    expires_at timestamptz;
    answer record;
    name constant text := '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$';
    -- The limits of checks.py, data.py and requests.py.
    name_rule constant text :=
        'must be a letter and up to 99 more of A-Z a-z 0-9 _ . : - (ASCII)';
    problem text := CASE
        WHEN p_domain IS NULL OR p_domain !~ name THEN 'p_domain ' || name_rule
        WHEN p_type IS NULL OR p_type !~ name THEN 'p_type ' || name_rule
        WHEN p_reply_to !~ name THEN 'p_reply_to ' || name_rule
        WHEN p_priority IS NULL OR p_priority NOT BETWEEN 0 AND 10 THEN
            'p_priority must be from 0 (first) to 10 (last)'
        WHEN p_delay < interval '0' OR p_delay > interval '100 years' THEN
            'p_delay must be from 0 to 100 years'
        WHEN p_expires <= interval '0' OR p_expires > interval '100 years' THEN
            'p_expires must be more than 0, and at most 100 years'
        WHEN p_expires <= p_delay THEN
            'p_expires must be longer than p_delay: the command would never start'
        WHEN p_max_attempts NOT BETWEEN 1 AND 32767 THEN 'p_max_attempts must be from 1 to 32767'
        WHEN length(p_key) NOT BETWEEN 1 AND 200
            THEN 'p_key must be text of 1 to 200 characters, and has ' || length(p_key)
        WHEN octet_length(data::text) > 1048576 THEN
            format('p_data has %s bytes: at most 1048576 are taken', octet_length(data::text))
        ELSE coalesce({schema}.unique_problem(p_unique, p_on_conflict, p_unique_until),
                      {schema}.headers_problem(p_headers))
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = problem;
    END IF;
    run_at := (present + p_delay) AT TIME ZONE 'UTC';
    expires_at := (present + p_expires) AT TIME ZONE 'UTC';
    IF p_unique IS NULL THEN
        SELECT e.refusal, e.depth, e.max_depth INTO answer
        FROM {schema}.enqueue(
            p_domain, p_type, data, command_id, p_command_id IS NOT NULL, p_priority, NULL, run_at,
            coalesce(p_correlation_id, command_id), p_reply_to, p_max_attempts, NULL, false,
            p_key => p_key, p_expires_at => expires_at, p_headers => p_headers) e;
    ELSE
        SELECT e.refusal, e.depth, e.max_depth, e.holder INTO answer
        FROM {schema}.enqueue_unique(
            p_domain, p_type, data, command_id, p_command_id IS NOT NULL, p_priority, NULL, run_at,
            coalesce(p_correlation_id, command_id), p_reply_to, p_max_attempts, NULL, false,
            p_unique, p_on_conflict, p_unique_until, p_key => p_key,
            p_expires_at => expires_at, p_headers => p_headers) e;
    END IF;
    CASE answer.refusal
        WHEN 'duplicate' THEN
            RAISE unique_violation USING MESSAGE = format(
                'command %s was sent to domain %s before: an id is taken once',
                command_id, p_domain);
        WHEN 'held' THEN
            IF p_on_conflict = 'existing' THEN
                RETURN answer.holder;
            END IF;
            RAISE unique_violation USING MESSAGE = format(
                'command %s of domain %s has the unique key %s', answer.holder, p_domain,
                to_json(p_unique));
        WHEN 'full' THEN
            RAISE configuration_limit_exceeded USING MESSAGE = format(
                'domain %s is full: its depth is %s, its max_depth %s; send again later',
                p_domain, answer.depth, answer.max_depth);
        WHEN 'key_full' THEN
            RAISE configuration_limit_exceeded USING MESSAGE = format(
                'key %s of domain %s is full: its depth is %s, its max_waiting_per_key %s; '
                'send again later', to_json(p_key), p_domain, answer.depth, answer.max_depth);
        WHEN 'closed' THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format(
                'domain %s does not accept commands: configure it with accepting=True', p_domain);
        ELSE
            RETURN command_id;
    END CASE;
END
$$;
