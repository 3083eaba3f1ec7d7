-- By the listening session, to find a server that has gone silent.
SELECT 1;
