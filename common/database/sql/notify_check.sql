-- By another session than the one that listens, as it will be.
SELECT pg_notify('{channel}_check', %(token)s);
