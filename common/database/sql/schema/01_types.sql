-- The types of what a sender writes.
--
-- A domain's condition is checked once, when a value of another type is converted to it; the
-- CHECKs of a table would be checked at every claim. The limits are those of checks.py, data.py
-- and requests.py.

-- (As one regular expression with {0,99}: 2.5 us instead of 0.2.)
CREATE DOMAIN {schema}.name AS text COLLATE "C"
    CHECK (octet_length(VALUE) <= 100 AND VALUE ~ '^[A-Za-z][A-Za-z0-9_.:-]*$');

-- The largest max_bytes, and 1,024 bytes for what a reply adds around its result.
CREATE DOMAIN {schema}.payload AS json CHECK (octet_length(VALUE::text) <= 16777216 + 1024);

-- The range of Python's datetime.
CREATE DOMAIN {schema}.finite_time AS timestamptz
    CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');

CREATE DOMAIN {schema}.priority AS smallint CHECK (VALUE BETWEEN 0 AND 10);
CREATE DOMAIN {schema}.attempt_limit AS smallint CHECK (VALUE > 0);

-- A key, by which limits count, or one that makes a command unique.
CREATE DOMAIN {schema}.key AS text COLLATE "C" CHECK (length(VALUE) BETWEEN 1 AND 200);

-- Headers: an object of up to 32 names with texts. Nothing else is stored, whoever writes it: what
-- reads them meets no other value. (A regular expression with {0,99} for the length of a name takes
-- ten times as long; all names together are bounded as it is.)
CREATE DOMAIN {schema}.headers AS json CHECK (
    CASE WHEN octet_length(VALUE::text) > 8192 OR json_typeof(VALUE) <> 'object' THEN false
         ELSE NOT jsonb_path_exists(VALUE::jsonb, '$.* ? (@.type() <> "string")')
             AND NOT jsonb_path_exists(VALUE::jsonb,
                 '$.keyvalue() ? (!(@.key like_regex "^[A-Za-z][A-Za-z0-9_.-]*$"))')
             AND jsonb_array_length(jsonb_path_query_array(VALUE::jsonb, '$.keyvalue()')) <= 32
         END);

-- A reason or an operator's name: 2,000 characters, each up to six when escaped.
CREATE DOMAIN {schema}.remark AS text CHECK (length(VALUE) <= 12000);

-- What a batch sends when it is over; delay and expires are in seconds. own: the id is the
-- caller's.
CREATE TYPE {schema}.request AS (
    domain {schema}.name, type {schema}.name, data {schema}.payload, command_id uuid, own boolean,
    priority {schema}.priority, delay double precision, run_at {schema}.finite_time,
    reply_to {schema}.name, max_attempts {schema}.attempt_limit, key {schema}.key,
    expires double precision, expires_at {schema}.finite_time, changes json,
    headers {schema}.headers
);

-- A claim, as a worker reads it. ctid is where its row was then: a settlement looks there first.
-- reply_to_and_headers: see the function of this name.
CREATE TYPE {schema}.claimed AS (
    domain text, priority smallint, id bigint, token bigint, command_id uuid, type text,
    data text, attempts smallint, losses smallint, max_attempts smallint, correlation_id uuid,
    reply_to_and_headers text, created_at timestamptz, waited double precision, batch_id uuid,
    caller bigint, ctid tid
);

-- Names a lane; the priority is that of a command of it. See 14_lanes.sql.
CREATE TYPE {schema}.lane_key AS (domain text, type text, key text, priority smallint);

-- A lane while a claim has it locked. room: the number of commands that it can take. waited: it is
-- noted what the lane waits for.
CREATE TYPE {schema}.locked_lane AS (
    domain text, type text, key text, turn bigint, next_start timestamptz, waited boolean,
    concurrency integer,
    per_second double precision, burst integer, ordered boolean, blocks boolean, shared text[],
    running integer, room integer, rate_room integer, first_priority smallint,
    first_position bigint
);

-- Another role's operator on such a type would match better than PostgreSQL's own.
REVOKE USAGE ON DOMAIN {schema}.name, {schema}.payload, {schema}.finite_time, {schema}.priority,
    {schema}.attempt_limit, {schema}.key, {schema}.headers, {schema}.remark FROM PUBLIC;
REVOKE USAGE ON TYPE {schema}.claimed, {schema}.request, {schema}.lane_key,
    {schema}.locked_lane FROM PUBLIC;
