-- A schema of this name that is not ours alone, and why; no row if it may be used.
SELECT CASE WHEN n.nspowner <> current_user::regrole::oid THEN 'belongs to ' || n.nspowner::regrole::text
            ELSE 'holds something else' END
FROM pg_namespace n
WHERE n.nspname = %(schema)s
    AND (n.nspowner <> current_user::regrole::oid
         OR EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)
         OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)
         OR EXISTS (SELECT FROM pg_type WHERE typnamespace = n.oid)
         OR EXISTS (SELECT FROM pg_operator WHERE oprnamespace = n.oid));
