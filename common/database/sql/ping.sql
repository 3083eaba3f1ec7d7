-- To find a session that has ended, or a server that has gone silent.
SELECT 1;
