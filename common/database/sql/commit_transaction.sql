-- And leaves nothing of the session to the next command. Not DISCARD ALL: it forgets
-- the statements that the driver has prepared and still believes in.
COMMIT;
CLOSE ALL;
RESET SESSION AUTHORIZATION;
RESET ROLE;
RESET ALL;
UNLISTEN *;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES;
