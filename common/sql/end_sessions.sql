-- And waits until they are gone: until then they may still commit what is in their socket.
SELECT pg_terminate_backend(pid, 5000) FROM unnest(%(pids)s::integer[]) pid;
