-- Statements of calls, and of readers of replies.

-- name: listen_for_calls
LISTEN {channel}_c{caller};

-- name: greet_caller
-- Sent by another session than the one that listens, as the notifications of settlements are.
SELECT pg_notify(%(channel)s, '');

-- name: listen_for_replies
LISTEN {channel}_ready;
LISTEN {channel}_c{caller};

-- name: unlisten
UNLISTEN *;

-- name: arm_reader
-- Without timers: a reader promotes nothing.
SELECT {schema}.arm(
    %(node)s, %(domains)s::text[], '-infinity', make_interval(secs => %(seconds)s));

-- name: claim_reply
-- Claims the first reply of a domain. No row at all: nodes handle the replies there, and the reader
-- does not share them. Else the last row has no token.
SELECT c.domain, c.priority, c.id, c.token, c.command_id, c.data, c.attempts, c.losses,
    c.max_attempts, c.correlation_id, c.created_at, c.batch_id, c.reply_to_and_headers
FROM {schema}.claim(
    array_fill(%(domain)s::text, ARRAY[11]),
    ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]::smallint[], array_fill(0::bigint, ARRAY[11]), false,
    ARRAY[%(domain)s::text || ' Reply'],
    CASE WHEN %(shared)s OR NOT {schema}.replies_are_handled(%(domain)s::text)
         THEN 1 ELSE 0 END,
    1, %(bytes)s::bigint, 32767::smallint, %(claimer)s::bigint, %(lease)s::interval) c;

-- name: settle_reply
SELECT {schema}.settle_reply(
    %(domain)s, %(priority)s::smallint, %(id)s::bigint, %(token)s::bigint, %(command_id)s,
    %(claimer)s::bigint, %(attempts)s::smallint, %(losses)s::smallint,
    %(max_attempts)s::smallint, %(code)s, %(message)s, %(batch_id)s);

-- name: renew_reply
SELECT {schema}.renew_claim(
    %(domain)s, %(priority)s::smallint, %(id)s::bigint, %(token)s::bigint, %(command_id)s,
    %(claimer)s::bigint, %(lease)s::interval);

-- name: release_reply
-- Uncharged, and without an event.
SELECT {schema}.release(
    ARRAY[%(domain)s::text], ARRAY[%(priority)s::smallint], ARRAY[%(id)s::bigint],
    ARRAY[%(token)s::bigint], ARRAY[%(command_id)s::uuid], %(claimer)s::bigint,
    ARRAY[NULL::smallint], NULL, NULL);
