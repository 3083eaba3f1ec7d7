-- Queues of PGMQ, by the functions of its extension. The first two statements have a place for
-- one of the calls at the end.
--
-- `found`: whether the queue exists. If not, the function is not called, so the caller's
-- transaction stays usable: its first argument is a column of `present`, which then has no row,
-- and OFFSET keeps the planner from putting the value in its place. (A condition alone does not
-- do: from version 16 on, PostgreSQL may check it after the call.) A queue's table has its name
-- in lower case. Where the PGMQ of the database is too old for a column, that of the same name
-- in `queue` stands in for it. What another program wrote may have times that a Python cannot hold.

-- name: pgmq_ids
SELECT queue.found, result.msg_id
FROM (
    SELECT to_regclass('pgmq.' || quote_ident(lower('q_' || %(queue)s::text))) IS NOT NULL OFFSET 0)
    AS queue (found)
LEFT JOIN LATERAL (
    SELECT ids.msg_id
    FROM (SELECT %(queue)s::text WHERE queue.found OFFSET 0) AS present (name)
    CROSS JOIN LATERAL {call} AS ids (msg_id)) AS result ON true
ORDER BY result.msg_id;

-- name: pgmq_messages
SELECT queue.found, result.*
FROM (
    SELECT to_regclass('pgmq.' || quote_ident(lower('q_' || %(queue)s::text))) IS NOT NULL,
        NULL::timestamptz, NULL::jsonb OFFSET 0) AS queue (found, last_read_at, headers)
LEFT JOIN LATERAL (
    SELECT msg_id, read_ct,
        least(greatest(enqueued_at, '0002-01-01 00:00+00'), '9998-12-31 00:00+00'),
        CASE WHEN last_read_at IS NOT NULL
             THEN least(greatest(last_read_at, '0002-01-01 00:00+00'), '9998-12-31 00:00+00') END,
        least(greatest(vt, '0002-01-01 00:00+00'), '9998-12-31 00:00+00'),
        message::text, headers::text
    FROM (SELECT %(queue)s::text WHERE queue.found OFFSET 0) AS present (name)
    CROSS JOIN LATERAL {call}) AS result ON true
ORDER BY result.msg_id;

-- name: pgmq_metrics
SELECT queue.found, result.*
FROM (
    SELECT to_regclass('pgmq.' || quote_ident(lower('q_' || %(queue)s::text))) IS NOT NULL,
        NULL::bigint, NULL::bigint OFFSET 0)
    AS queue (found, queue_visible_length, default_partition_length)
LEFT JOIN LATERAL (
    SELECT queue_name, queue_length, newest_msg_age_sec, oldest_msg_age_sec, total_messages,
        scrape_time, queue_visible_length, default_partition_length
    FROM (SELECT %(queue)s::text WHERE queue.found OFFSET 0) AS present (name)
    CROSS JOIN LATERAL pgmq.metrics(present.name)) AS result ON true;

-- name: pgmq_metrics_all
SELECT true, result.*
FROM (SELECT NULL::bigint, NULL::bigint)
    AS queue (queue_visible_length, default_partition_length)
CROSS JOIN LATERAL (
    SELECT queue_name, queue_length, newest_msg_age_sec, oldest_msg_age_sec, total_messages,
        scrape_time, queue_visible_length, default_partition_length
    FROM pgmq.metrics_all()) AS result
ORDER BY queue_name;

-- name: pgmq_queues
SELECT true, queue_name, is_partitioned, is_unlogged, created_at
FROM pgmq.list_queues()
ORDER BY queue_name;

-- name: pgmq_send
pgmq.send(present.name, %(message)s::jsonb, %(seconds)s::integer)

-- name: pgmq_send_at
-- From PGMQ 1.5 on, like pgmq_send_batch_at.
pgmq.send(present.name, %(message)s::jsonb, %(headers)s::jsonb, coalesce(%(time)s::timestamptz,
    clock_timestamp() + %(seconds)s::double precision * interval '1 second'))

-- name: pgmq_send_batch
pgmq.send_batch(present.name, %(messages)s::jsonb[], %(seconds)s::integer)

-- name: pgmq_send_batch_at
pgmq.send_batch(present.name, %(messages)s::jsonb[], %(headers)s::jsonb[],
    coalesce(%(time)s::timestamptz,
        clock_timestamp() + %(seconds)s::double precision * interval '1 second'))

-- name: pgmq_read
-- Each version takes a condition of NULL for none.
pgmq.read(present.name, %(vt)s::integer, %(qty)s::integer, %(conditional)s::jsonb)

-- name: pgmq_pop
pgmq.pop(present.name)

-- name: pgmq_pop_many
pgmq.pop(present.name, %(qty)s::integer)

-- name: pgmq_set_vt
pgmq.set_vt(present.name, %(msg_id)s::bigint, %(seconds)s::integer)

-- name: pgmq_set_vt_many
pgmq.set_vt(present.name, %(msg_ids)s::bigint[], %(seconds)s::integer)

-- name: pgmq_set_vt_at
pgmq.set_vt(present.name, %(msg_ids)s::bigint[], coalesce(%(time)s::timestamptz,
    clock_timestamp() + %(seconds)s::double precision * interval '1 second'))

-- name: pgmq_archive
pgmq.archive(present.name, %(msg_ids)s::bigint[])

-- name: pgmq_delete
pgmq.delete(present.name, %(msg_ids)s::bigint[])
