-- Until a call's first try has ended. A statement of its own: at REPEATABLE READ the
-- look that follows would else be as old as the wait.
SELECT pg_advisory_lock(%(call)s::bigint), pg_advisory_unlock(%(call)s::bigint);
