-- What the tests of applications do: the savepoints of their runner, times that are moved, and
-- tables that are cleared.

-- name: open_savepoint
SAVEPOINT {identifier};

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT {identifier};

-- name: mark_transaction
-- As open_transaction does, for a handler inside the transaction of a test.
SELECT set_config('cmdbus.transaction', %(marker)s, true);

-- name: find_database
SELECT FROM pg_database WHERE datname = %(name)s;

-- name: create_named_database
CREATE DATABASE {identifier};

-- name: hold_database
-- For as long as the session lasts; false if another run of tests holds it.
SELECT pg_try_advisory_lock(hashtextextended('cmdbus.testing', 0));

-- name: drop_schema
DROP SCHEMA IF EXISTS {schema} CASCADE;

-- name: read_isolation
SELECT current_setting('transaction_isolation');

-- name: find_earlier_worker
-- The latest worker that was started before these tests were.
SELECT worker, to_char(started_at, 'YYYY-MM-DD HH24:MI') FROM {schema}.incarnation
WHERE worker <> %(tester)s
    AND started_at < clock_timestamp() - make_interval(secs => %(age)s::double precision)
ORDER BY started_at DESC
LIMIT 1;

-- name: find_stewards_work
-- Whether the time of a command or of a schedule has come, and whether a batch has not ended. What
-- stewards execute for these takes a new session several times as long as this.
SELECT
    EXISTS (SELECT FROM {schema}.scheduled WHERE due_at <= c.present)
        OR EXISTS (SELECT FROM {schema}.schedule WHERE check_at <= c.present)
        OR EXISTS (SELECT FROM {schema}.ready
                   WHERE expires_at <= c.present AND attempts = 0 AND losses = 0)
        OR EXISTS (SELECT FROM {schema}.scheduled WHERE expires_at <= c.present)
        OR EXISTS (SELECT FROM {schema}.limited WHERE expires_at <= c.present),
    EXISTS (SELECT FROM {schema}.batch_state WHERE completed_at IS NULL)
FROM (SELECT clock_timestamp() AS present) c;

-- name: move_times
-- Moves the times that something waits for into the past. Not those of nodes, whose silence would
-- be taken for an outage, nor those of what is over.
WITH by AS (SELECT %(by)s::interval AS shift),
ready AS (
    UPDATE {schema}.ready SET created_at = created_at - by.shift, due_at = due_at - by.shift,
        expires_at = expires_at - by.shift, claimed_at = claimed_at - by.shift,
        lease_until = lease_until - by.shift
    FROM by),
scheduled AS (
    UPDATE {schema}.scheduled SET created_at = created_at - by.shift, due_at = due_at - by.shift,
        expires_at = expires_at - by.shift, claimed_at = claimed_at - by.shift
    FROM by),
limited AS (
    UPDATE {schema}.limited SET created_at = created_at - by.shift, due_at = due_at - by.shift,
        expires_at = expires_at - by.shift, claimed_at = claimed_at - by.shift
    FROM by),
troubleshooting AS (
    UPDATE {schema}.troubleshooting SET created_at = created_at - by.shift,
        due_at = due_at - by.shift, expires_at = expires_at - by.shift,
        claimed_at = claimed_at - by.shift, failed_at = failed_at - by.shift
    FROM by),
checkpoint AS (
    UPDATE {schema}.checkpoint SET created_at = created_at - by.shift,
        saved_at = saved_at - by.shift
    FROM by),
unique_command AS (
    UPDATE {schema}.unique_command SET held_until = held_until - by.shift FROM by),
lane AS (
    UPDATE {schema}.lane SET next_start = next_start - by.shift, opens_at = opens_at - by.shift
    FROM by),
shared_state AS (
    UPDATE {schema}.shared_state SET next_start = next_start - by.shift FROM by),
lease AS (
    UPDATE {schema}.lease SET ends_at = ends_at - by.shift FROM by),
process_step AS (
    UPDATE {schema}.process_step SET sent_at = sent_at - by.shift,
        received_at = received_at - by.shift, deadline_at = deadline_at - by.shift
    FROM by),
breaker AS (
    UPDATE {schema}.breaker SET changed_at = changed_at - by.shift,
        opened_at = opened_at - by.shift, retry_at = retry_at - by.shift,
        succeeded_at = succeeded_at - by.shift,
        failed_at = ARRAY(SELECT at - by.shift FROM unnest(failed_at) WITH ORDINALITY f (at, place)
                          ORDER BY place)
    FROM by),
breaker_probe AS (
    UPDATE {schema}.breaker_probe SET held_until = held_until - by.shift FROM by)
UPDATE {schema}.schedule SET counts_from = counts_from - by.shift,
    next_tick = next_tick - by.shift, check_at = check_at - by.shift,
    last_tick = last_tick - by.shift, left_out_at = left_out_at - by.shift
FROM by;

-- name: clear_tables
-- All that senders, workers and operators have written. To delete the few rows of a test takes less
-- time than TRUNCATE, which makes new files.
DELETE FROM {schema}.ready;
DELETE FROM {schema}.scheduled;
DELETE FROM {schema}.limited;
DELETE FROM {schema}.troubleshooting;
DELETE FROM {schema}.finished;
DELETE FROM {schema}.event;
DELETE FROM {schema}.identity;
DELETE FROM {schema}.unique_command;
DELETE FROM {schema}.checkpoint;
DELETE FROM {schema}.batch_state;
DELETE FROM {schema}.tally;
DELETE FROM {schema}.process_step;
DELETE FROM {schema}.process_event;
DELETE FROM {schema}.managed_process;
DELETE FROM {schema}.domain_event;
DELETE FROM {schema}.domain;
DELETE FROM {schema}.turn;
DELETE FROM {schema}.lane;
DELETE FROM {schema}.shared_state;
DELETE FROM {schema}.limited_type;
DELETE FROM {schema}.limit_in_force;
DELETE FROM {schema}.limit_declared;
DELETE FROM {schema}.limit_set;
DELETE FROM {schema}.type_tags;
DELETE FROM {schema}.breaker_probe;
DELETE FROM {schema}.breaker_event;
DELETE FROM {schema}.breaker;
DELETE FROM {schema}.breaker_set;
DELETE FROM {schema}.breaker_declared;
DELETE FROM {schema}.schedule;
DELETE FROM {schema}.schedule_declared;
DELETE FROM {schema}.schedule_added;
DELETE FROM {schema}.bridge;
DELETE FROM {schema}.waiter;
DELETE FROM {schema}.lease;
DELETE FROM {schema}.published_node;
DELETE FROM {schema}.fleet_watch;
DELETE FROM {schema}.rollup;
DELETE FROM {schema}.rollup_source;
DELETE FROM {schema}.depth_sample;
DELETE FROM {schema}.node;
DELETE FROM {schema}.incarnation;
