-- Searches for operators; see 21_searching.sql.

-- name: begin_search
-- The queues that are walked, whether the role may read what senders and handlers wrote, and the
-- server's time.
SELECT q.*, has_column_privilege('{schema}.command', 'error_message', 'SELECT'),
    clock_timestamp()
FROM {schema}.read_queues(%(domain)s::text, %(count)s::integer) q;
