-- Statements of cmdbus init.

-- name: create_database
CREATE DATABASE cmdbus;

-- name: narrow_search_path
-- The installer may be a superuser: no operator or function of other roles is called, even if its
-- argument types match better.
SET LOCAL search_path = pg_catalog, pg_temp;

-- name: lock_migrations
-- One process at a time migrates a schema; released when its transaction ends.
SELECT pg_advisory_xact_lock(
    'pg_catalog.pg_namespace'::regclass::oid::integer, hashtext(%(schema)s));

-- name: find_migrations
SELECT to_regclass('{schema}.migration')::text;

-- name: read_migrations
-- The schema of a build that recorded no digests has no such column.
SELECT version, name, to_jsonb(m) ->> 'digest'::text
FROM {schema}.migration m
ORDER BY version;

-- name: read_foreign_schema
-- Why a schema of this name cannot be used; no row if it can.
SELECT CASE WHEN n.nspowner <> current_user::regrole::oid
    THEN 'belongs to ' || n.nspowner::regrole::text ELSE 'holds something else' END
FROM pg_namespace n
WHERE n.nspname = %(schema)s
    AND (n.nspowner <> current_user::regrole::oid
         OR EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)
         OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)
         OR EXISTS (SELECT FROM pg_type WHERE typnamespace = n.oid)
         OR EXISTS (SELECT FROM pg_operator WHERE oprnamespace = n.oid));

-- name: find_schema_owner
-- No row if there is no such schema.
SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = %(schema)s;

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    -- Tells the migration's text from another build's.
    digest text NOT NULL DEFAULT '',
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: insert_migration
INSERT INTO {schema}.migration (version, name, digest)
VALUES (%(version)s, %(name)s, %(digest)s);

-- name: grant_any
-- The rights that each kind of role has.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration TO {role};

-- name: grant_worker
-- May run commands, operate, send and read; may remove history only by retain_day and
-- retain_domain.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    {schema}.ready, {schema}.scheduled, {schema}.limited, {schema}.lane, {schema}.shared_state,
    {schema}.turn, {schema}.lease, {schema}.waiter, {schema}.node
    TO {role};
GRANT SELECT, INSERT ON
    {schema}.troubleshooting, {schema}.finished, {schema}.event, {schema}.incarnation,
    {schema}.tally TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.checkpoint TO {role};
GRANT SELECT, UPDATE ON {schema}.bridge TO {role};
GRANT SELECT ON
    {schema}.command, {schema}.batch, {schema}.batch_state, {schema}.domain,
    {schema}.domain_event,
    {schema}.process, {schema}.managed_process, {schema}.process_step, {schema}.process_event,
    {schema}.limit_in_force, {schema}.limited_type, {schema}.limit_declared, {schema}.limit_set,
    {schema}.schedule, {schema}.schedule_declared, {schema}.schedule_added,
    {schema}.breaker, {schema}.breaker_declared, {schema}.breaker_set, {schema}.breaker_probe,
    {schema}.breaker_event, {schema}.rollup
    TO {role};
GRANT SELECT, UPDATE ON SEQUENCE
    {schema}.armed, {schema}.alarm, {schema}.patience, {schema}.longer_patience,
    {schema}.turn_id_seq TO {role};
GRANT SELECT ON SEQUENCE
    {schema}.ready_id_seq, {schema}.scheduled_id_seq, {schema}.event_id_seq,
    {schema}.domain_event_id_seq, {schema}.tally_id_seq, {schema}.limits TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};

-- name: grant_producer
-- May send and cancel, start processes and signal them; may read nothing of what others sent.
GRANT EXECUTE ON FUNCTION
    {schema}.send, {schema}.enqueue, {schema}.admit, {schema}.find_full_key, {schema}.identify,
    {schema}.already_sent,
    {schema}.cancel, {schema}.outcome, {schema}.batch_exists, {schema}.create_batch,
    {schema}.cancel_batch, {schema}.cancel_in_batch, {schema}.start_process,
    {schema}.signal_process, {schema}.wake, {schema}.wake_at, {schema}.notify, {schema}.domain_bit,
    {schema}.limited_types, {schema}.move_arrived,
    {schema}.enqueue_unique, {schema}.note_changes, {schema}.sent_at,
    {schema}.take_unique_keys TO {role};
GRANT SELECT ON SEQUENCE {schema}.armed, {schema}.alarm, {schema}.limits TO {role};
-- For bulk sends, which COPY; without the columns of claims and attempts.
GRANT INSERT (domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts,
              batch_id, key, unique_key, expires_at, headers) ON {schema}.ready TO {role};
GRANT INSERT (domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts,
              batch_id, key, unique_key, expires_at, headers, due_at)
    ON {schema}.scheduled TO {role};

-- name: grant_operator
-- May read everything, cancel, reschedule, resolve and steer domains and processes; may not send,
-- run, or change a command or its history in any other way.
GRANT SELECT ON
    {schema}.command, {schema}.ready, {schema}.scheduled, {schema}.limited, {schema}.checkpoint,
    {schema}.troubleshooting, {schema}.finished, {schema}.event, {schema}.incarnation,
    {schema}.domain, {schema}.domain_event, {schema}.batch, {schema}.batch_state,
    {schema}.process, {schema}.managed_process, {schema}.process_step, {schema}.process_event,
    {schema}.limit_in_force, {schema}.limited_type, {schema}.limit_declared, {schema}.limit_set,
    {schema}.schedule, {schema}.schedule_declared, {schema}.schedule_added,
    {schema}.breaker, {schema}.breaker_declared, {schema}.breaker_set, {schema}.breaker_probe,
    {schema}.breaker_event, {schema}.published_node, {schema}.rollup, {schema}.bridge
    TO {role};
GRANT EXECUTE ON FUNCTION
    {schema}.cancel, {schema}.cancel_ready, {schema}.cancel_scheduled, {schema}.cancel_limited,
    {schema}.cancel_of_key, {schema}.reschedule,
    {schema}.resolve, {schema}.resolve_chunk, {schema}.configure_domain,
    {schema}.set_limit, {schema}.clear_limit,
    {schema}.add_schedule, {schema}.remove_schedule, {schema}.pause_schedule,
    {schema}.run_schedule, {schema}.add_bridge, {schema}.remove_bridge,
    {schema}.steer_breaker, {schema}.set_breaker, {schema}.clear_breaker,
    {schema}.cancel_batch, {schema}.cancel_in_batch, {schema}.batch_keys,
    {schema}.cancel_process, {schema}.retry_process, {schema}.signal_process,
    {schema}.wake, {schema}.notify, {schema}.domain_bit, {schema}.is_handled,
    {schema}.is_waiting, {schema}.explain, {schema}.explain_limits, {schema}.missing_tags,
    {schema}.unclaimed_priorities, {schema}.count_unreachable, {schema}.is_gone,
    {schema}.count_nodes, {schema}.watch_fleet TO {role};
-- For searches.
GRANT EXECUTE ON FUNCTION
    {schema}.walk, {schema}.read_queues, {schema}.read_found, {schema}.list_domains,
    {schema}.list_types, {schema}.count_newest TO {role};
GRANT SELECT ON SEQUENCE {schema}.armed TO {role};

-- name: grant_monitor
-- May see every command and its progress, but no payload, result or message; and what operators
-- have set now, but no audit trail.
GRANT SELECT (domain, command_id, type, status, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, started_at, finished_at,
              worker) ON {schema}.command TO {role};
GRANT SELECT (batch_id, domain, status, total, completed, failed, canceled, in_troubleshooting,
              remaining, created_at, started_at, completed_at) ON {schema}.batch TO {role};
GRANT SELECT (process_id, domain, type, status, step, batch_id, created_at, updated_at, finished_at)
    ON {schema}.process TO {role};
-- For counts of domains and of troubleshooting, and for searches.
GRANT SELECT (domain, command_id, type, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, claimed_at, claimer,
              lease_until, id)
    ON {schema}.ready TO {role};
GRANT SELECT (domain, command_id, type, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, claimed_at, claimer,
              id)
    ON {schema}.scheduled TO {role};
GRANT SELECT (domain, command_id, type, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, claimed_at, claimer,
              lane_position)
    ON {schema}.limited TO {role};
GRANT SELECT (domain, command_id, type, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, claimed_at, claimer,
              failed_at)
    ON {schema}.troubleshooting TO {role};
GRANT SELECT (domain, command_id, type, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, claimed_at, claimer,
              finished_at, status)
    ON {schema}.finished TO {role};
GRANT SELECT (id, worker) ON {schema}.incarnation TO {role};
GRANT SELECT ON
    {schema}.domain, {schema}.rollup, {schema}.bridge,
    {schema}.limit_in_force, {schema}.limited_type, {schema}.limit_declared, {schema}.limit_set,
    {schema}.breaker, {schema}.breaker_declared, {schema}.breaker_set, {schema}.breaker_probe
    TO {role};
GRANT SELECT (name, terms, app, paused, counts_from, next_tick, check_at, last_tick,
              last_command_id, left_out, left_out_at, last_error) ON {schema}.schedule TO {role};
GRANT SELECT (name, app, terms, declared_at) ON {schema}.schedule_declared TO {role};
GRANT SELECT (name, terms, operator, reason, added_at) ON {schema}.schedule_added TO {role};
GRANT SELECT (node, name, host, published_at, stopped, state, counters)
    ON {schema}.published_node TO {role};
GRANT EXECUTE ON FUNCTION
    {schema}.is_handled, {schema}.explain, {schema}.explain_limits, {schema}.missing_tags,
    {schema}.unclaimed_priorities, {schema}.count_unreachable, {schema}.is_gone,
    {schema}.count_nodes, {schema}.watch_fleet TO {role};
-- For searches.
GRANT EXECUTE ON FUNCTION
    {schema}.walk, {schema}.read_queues, {schema}.read_found, {schema}.list_domains,
    {schema}.list_types, {schema}.count_newest TO {role};
