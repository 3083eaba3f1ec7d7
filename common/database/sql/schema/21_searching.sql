-- Searches for operators, whose cost does not grow with the tables: a walk reads one table in the
-- order of an index that sending, claiming and settling need anyway.

-- A part of a walk: the next p_count rows after the last one that was read. Returns those that
-- meet the conditions, and always the row of the number p_count, after which the walk goes on.
-- Conditions that are NULL are left out; p_text is looked for in data that takes up to 256 kB, and
-- in messages. The queues are those of read_queues.
--
-- The statement is put together, so that it reads only columns of conditions that are given, which
-- the role may read, and so that each walk is planned for its own index.
CREATE FUNCTION {schema}.walk(
    p_walk text, p_count integer, p_domains text[], p_priorities smallint[],
    p_domain text, p_type text, p_status text, p_error_code text, p_key text, p_batch_id uuid,
    p_correlation_id uuid, p_since timestamptz, p_until timestamptz, p_text text,
    p_last_created_at timestamptz, p_last_at timestamptz, p_last_domain text,
    p_last_command_id uuid, p_last_number bigint
) RETURNS TABLE (
    row_read integer, is_match boolean, its_created_at timestamptz, its_at timestamptz,
    its_domain text, its_command_id uuid, its_number bigint
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    walk record;
    table_read text := split_part(p_walk, '.', 1);
    direction text;
    conditions text;
    range text := '';
    order_by text;
    part text;
BEGIN
    -- The columns of an index, the arguments that hold their last values, and what precedes them
    -- in the index; and the queues that are merged.
    SELECT * INTO walk FROM (VALUES
        ('ready.newest', 't.id', '$19', 't.domain = q.domain AND t.priority = q.priority',
            'unnest($3, $4) q (domain, priority)'),
        -- Claims take the oldest of a queue.
        ('ready.claimed', 't.id', '$19', 't.domain = q.domain AND t.priority = q.priority',
            'unnest($3, $4) q (domain, priority)'),
        ('ready.ids', 't.command_id, t.id', '$18, $19', NULL, NULL),
        ('ready.key', 't.created_at, t.id', '$15, $19', 't.domain = $5 AND t.key = $9', NULL),
        ('ready.batch', 't.created_at, t.id', '$15, $19', 't.batch_id = $10', NULL),
        ('scheduled.ids', 't.command_id, t.domain', '$18, $17', 't.domain = q.domain',
            'unnest($3) q (domain)'),
        ('scheduled.due', 't.due_at, t.id', '$16, $19', NULL, NULL),
        ('scheduled.key', 't.created_at, t.id', '$15, $19', 't.domain = $5 AND t.key = $9', NULL),
        ('scheduled.batch', 't.created_at, t.id', '$15, $19', 't.batch_id = $10', NULL),
        ('limited.ids', 't.command_id, t.lane_position', '$18, $19', NULL, NULL),
        ('limited.key', 't.created_at, t.lane_position', '$15, $19',
            't.domain = $5 AND t.key = $9', NULL),
        ('limited.batch', 't.created_at, t.lane_position', '$15, $19', 't.batch_id = $10', NULL),
        ('troubleshooting.newest', 't.failed_at, t.domain, t.command_id', '$16, $17, $18', NULL,
            NULL),
        ('troubleshooting.ids', 't.command_id', '$18', 't.domain = $5', NULL),
        ('troubleshooting.batch', 't.created_at, t.domain, t.command_id', '$15, $17, $18',
            't.batch_id = $10', NULL),
        ('finished.newest', 't.created_at, t.domain, t.command_id', '$15, $17, $18', NULL, NULL),
        ('finished.oldest', 't.created_at, t.domain, t.command_id', '$15, $17, $18', NULL, NULL),
        -- For a domain that has few of the newest.
        ('finished.ids', 't.command_id, t.finished_at', '$18, $16', 't.domain = $5', NULL),
        ('finished.completed', 't.created_at, t.domain, t.command_id', '$15, $17, $18',
            't.batch_id = $10 AND t.status = ''COMPLETED''', NULL),
        ('finished.failed', 't.created_at, t.domain, t.command_id', '$15, $17, $18',
            't.batch_id = $10 AND t.status = ''FAILED''', NULL),
        ('finished.canceled', 't.created_at, t.domain, t.command_id', '$15, $17, $18',
            't.batch_id = $10 AND t.status = ''CANCELED''', NULL)
    ) walks (name, keys, last, prefix, queues) WHERE name = p_walk;
    direction := CASE WHEN p_walk IN ('ready.claimed', 'finished.oldest') THEN '' ELSE ' DESC' END;
    order_by := replace(walk.keys, ',', direction || ',') || direction;
    conditions := concat('true',
        CASE WHEN p_domain IS NOT NULL THEN ' AND t.domain = $5' END,
        CASE WHEN p_type IS NOT NULL THEN ' AND t.type = $6' END,
        CASE WHEN p_status IS NOT NULL AND table_read = 'ready'
            THEN ' AND (t.lease_until IS NOT NULL AND t.lease_until > clock_timestamp())'
                || ' = ($7 = ''IN_PROGRESS'')' END,
        CASE WHEN p_status IS NOT NULL AND table_read = 'finished'
            THEN ' AND t.status = $7' END,
        CASE WHEN p_error_code IS NOT NULL THEN ' AND t.error_code = $8' END,
        CASE WHEN p_key IS NOT NULL THEN ' AND t.key = $9' END,
        CASE WHEN p_batch_id IS NOT NULL THEN ' AND t.batch_id = $10' END,
        CASE WHEN p_correlation_id IS NOT NULL THEN ' AND t.correlation_id = $11' END,
        CASE WHEN p_since IS NOT NULL THEN ' AND t.created_at >= $12' END,
        CASE WHEN p_until IS NOT NULL THEN ' AND t.created_at < $13' END,
        CASE WHEN p_text IS NOT NULL
            THEN ' AND (position(lower($14) IN lower(coalesce(t.error_message, ''''))) > 0'
                || ' OR CASE WHEN pg_column_size(t.data) <= 262144'
                || ' THEN position(lower($14) IN lower(t.data::text)) > 0 END)' END);
    IF walk.keys LIKE 't.created_at%' THEN
        range := concat(range, CASE WHEN p_since IS NOT NULL THEN ' AND t.created_at >= $12' END,
            CASE WHEN p_until IS NOT NULL THEN ' AND t.created_at < $13' END);
    END IF;
    IF table_read = 'finished' AND p_since IS NOT NULL THEN
        -- What finished before was sent before: so whole partitions go unread.
        range := range || ' AND t.finished_at >= $12';
    END IF;
    IF p_last_command_id IS NOT NULL THEN
        range := format('%s AND (%s) %s (%s)', range, walk.keys,
            CASE direction WHEN '' THEN '>' ELSE '<' END, walk.last);
    END IF;
    part := format(
        'SELECT coalesce(%s, false) AS is_match, t.created_at, %s AS at, t.domain::text AS domain,'
        ' t.command_id, %s::bigint AS number FROM {schema}.%I t WHERE %s%s ORDER BY %s LIMIT $2',
        conditions,
        CASE table_read WHEN 'scheduled' THEN 'least(t.due_at, ''9998-12-31'')'
            WHEN 'troubleshooting' THEN 't.failed_at' WHEN 'finished' THEN 't.finished_at'
            ELSE 'NULL' END || '::timestamptz',
        CASE table_read WHEN 'ready' THEN 't.id' WHEN 'scheduled' THEN 't.id'
            WHEN 'limited' THEN 't.lane_position' ELSE '0' END,
        table_read, coalesce(walk.prefix, 'true'), range,
        order_by);
    IF walk.queues IS NOT NULL THEN
        part := format(
            'SELECT w.* FROM %s CROSS JOIN LATERAL (%s) w ORDER BY %s LIMIT $2', walk.queues, part,
            replace(replace(order_by, 't.id', 'w.number'), 't.', 'w.'));
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT * FROM (SELECT row_number() OVER ()::integer AS row_read, w.* FROM (%s) w) w'
        ' WHERE w.is_match OR w.row_read = $2', part)
    USING p_walk, p_count, p_domains, p_priorities, p_domain, p_type, p_status, p_error_code, p_key,
        p_batch_id, p_correlation_id, p_since, p_until, p_text, p_last_created_at, p_last_at,
        p_last_domain, p_last_command_id, p_last_number;
END
$$;

-- The domains and priorities of ready, and the domains of scheduled, or those of p_domain: at most
-- p_count of each, found by jumps from one to the next. And whether any commands, or those of
-- p_domain, wait at limits.
CREATE FUNCTION {schema}.read_queues(p_domain text, p_count integer)
RETURNS TABLE (
    ready_domains text[], ready_priorities smallint[], scheduled_domains text[], are_limited boolean
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_domain text := coalesce(p_domain, '');
    found_priority smallint := -1;
BEGIN
    ready_domains := '{}';
    ready_priorities := '{}';
    scheduled_domains := '{}';
    WHILE cardinality(ready_domains) < p_count LOOP
        SELECT r.domain, r.priority INTO found_domain, found_priority FROM {schema}.ready r
        WHERE (r.domain, r.priority) > (found_domain, found_priority)
        ORDER BY r.domain, r.priority LIMIT 1;
        EXIT WHEN NOT FOUND OR found_domain <> p_domain;
        ready_domains := ready_domains || found_domain;
        ready_priorities := ready_priorities || found_priority;
    END LOOP;
    found_domain := '';
    WHILE p_domain IS NULL AND cardinality(scheduled_domains) < p_count LOOP
        SELECT s.domain INTO found_domain FROM {schema}.scheduled s
        WHERE s.domain > found_domain ORDER BY s.domain LIMIT 1;
        EXIT WHEN NOT FOUND;
        scheduled_domains := scheduled_domains || found_domain;
    END LOOP;
    IF p_domain IS NOT NULL THEN
        scheduled_domains := ARRAY[p_domain];
    END IF;
    are_limited := p_domain IS NULL
        OR EXISTS (SELECT FROM {schema}.limited l WHERE l.domain = p_domain);
    RETURN NEXT;
END
$$;

-- Domains that have commands or settings, in alphabetical order: the first p_count.
CREATE FUNCTION {schema}.list_domains(p_count integer) RETURNS SETOF text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_domain text := '';
BEGIN
    FOR i IN 1..p_count LOOP
        SELECT min(d.domain COLLATE "C") INTO found_domain FROM (
            (SELECT r.domain::text FROM {schema}.ready r
             WHERE r.domain > found_domain ORDER BY r.domain LIMIT 1)
            UNION ALL
            (SELECT s.domain::text FROM {schema}.scheduled s
             WHERE s.domain > found_domain ORDER BY s.domain LIMIT 1)
            UNION ALL
            (SELECT l.domain::text FROM {schema}.limited l
             WHERE l.domain > found_domain ORDER BY l.domain LIMIT 1)
            UNION ALL
            (SELECT t.domain FROM {schema}.troubleshooting t
             WHERE t.domain > found_domain ORDER BY t.domain LIMIT 1)
            UNION ALL
            (SELECT f.domain FROM {schema}.finished f
             WHERE f.domain > found_domain ORDER BY f.domain LIMIT 1)
            UNION ALL
            (SELECT c.name::text FROM {schema}.domain c
             WHERE c.name > found_domain ORDER BY c.name LIMIT 1)
        ) d;
        EXIT WHEN found_domain IS NULL;
        RETURN NEXT found_domain;
    END LOOP;
END
$$;

-- Types of some commands of each table: of the newest, where an index gives these.
CREATE FUNCTION {schema}.list_types() RETURNS TABLE (its_domain text, its_type text)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY
    SELECT DISTINCT t.domain, t.type FROM (
        (SELECT r.domain::text, r.type::text FROM {schema}.ready r
         ORDER BY r.command_id DESC LIMIT 1000)
        UNION ALL
        (SELECT s.domain::text, s.type::text FROM {schema}.scheduled s
         ORDER BY s.due_at DESC LIMIT 1000)
        UNION ALL
        (SELECT l.domain::text, l.type::text FROM {schema}.limited l
         ORDER BY l.command_id DESC LIMIT 1000)
        UNION ALL
        (SELECT q.domain, q.type FROM {schema}.troubleshooting q
         ORDER BY q.failed_at DESC LIMIT 1000)
        UNION ALL
        (SELECT f.domain, f.type FROM {schema}.finished f
         ORDER BY f.created_at DESC LIMIT 2000)
    ) t
    ORDER BY t.domain, t.type
    LIMIT 1000;
END
$$;

-- How many of the newest p_count in the history are of a domain.
CREATE FUNCTION {schema}.count_newest(p_domain text, p_count integer) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT f.domain FROM {schema}.finished f ORDER BY f.created_at DESC LIMIT p_count
        ) newest WHERE newest.domain = p_domain);
END
$$;

-- Commands by their ids, wherever they are now, as the view `command` shows them: without payloads,
-- and without messages and keys if the role may not read them. Those that have finished have done
-- so in the times p_since and p_until of each, so that one partition is read and not all. By
-- tables and not by the view: an unanalysed limited would be read by the domain.
CREATE FUNCTION {schema}.read_found(
    p_domains text[], p_command_ids uuid[], p_since timestamptz[], p_until timestamptz[],
    p_restricted boolean
) RETURNS TABLE (
    its_domain text, its_command_id uuid, its_type text, its_status text, its_priority smallint,
    its_attempts integer, its_max_attempts integer, its_error_code text, its_error_message text,
    its_correlation_id uuid, its_reply_to text, its_batch_id uuid, its_created_at timestamptz,
    its_due_at timestamptz, its_started_at timestamptz, its_finished_at timestamptz,
    its_worker text, its_key text
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_anywhere text;
BEGIN
    SELECT string_agg(format(
        'SELECT t.domain::text AS domain, t.command_id, t.type::text AS type, %s AS status,'
        ' t.priority::smallint AS priority, t.attempts, t.max_attempts::integer AS max_attempts,'
        ' t.error_code, %s AS error_message, t.correlation_id, t.reply_to::text AS reply_to,'
        ' t.batch_id, t.created_at, t.due_at::timestamptz AS due_at, t.claimed_at,'
        ' %s AS finished_at, %s AS key, t.claimer'
        ' FROM {schema}.%I t WHERE t.command_id = k.command_id AND t.domain%s',
        status, CASE WHEN p_restricted THEN 'NULL::text' ELSE 'left(t.error_message, 1000)' END,
        finished_at, CASE WHEN p_restricted THEN 'NULL::text' ELSE 't.key::text' END,
        name, suffix), ' UNION ALL ') INTO found_anywhere
    FROM (VALUES
        ('ready', $s$CASE WHEN t.lease_until > clock_timestamp() THEN 'IN_PROGRESS'
            ELSE 'PENDING' END$s$, 'NULL::timestamptz', $s$ || '' = k.domain$s$),
        ('scheduled', $s$'PENDING'$s$, 'NULL::timestamptz', ' = k.domain'),
        ('limited', $s$'PENDING'$s$, 'NULL::timestamptz', $s$ || '' = k.domain$s$),
        ('troubleshooting', $s$'IN_TROUBLESHOOTING_QUEUE'$s$, 'NULL::timestamptz', ' = k.domain'),
        ('finished', 't.status', 't.finished_at',
            -- The bounds of all, for the plan.
            ' = k.domain AND t.finished_at BETWEEN k.since AND k.until'
            ' AND t.finished_at BETWEEN $5 AND $6')
    ) tables (name, status, finished_at, suffix);
    RETURN QUERY EXECUTE format(
        'SELECT c.domain, c.command_id, c.type, c.status, c.priority,'
        ' c.attempts + (c.status = ''IN_PROGRESS'')::integer, c.max_attempts, c.error_code,'
        ' c.error_message, c.correlation_id, c.reply_to, c.batch_id, c.created_at,'
        ' least(greatest(coalesce(c.due_at, c.created_at), ''0002-01-01''), ''9998-12-31''),'
        ' c.claimed_at, c.finished_at, i.worker, c.key'
        ' FROM unnest($1, $2, $3, $4) k (domain, command_id, since, until)'
        ' CROSS JOIN LATERAL (%s) c'
        ' LEFT JOIN {schema}.incarnation i ON i.id = c.claimer', found_anywhere)
    USING p_domains, p_command_ids, p_since, p_until,
        (SELECT min(t) FROM unnest(p_since) t), (SELECT max(t) FROM unnest(p_until) t);
END
$$;
