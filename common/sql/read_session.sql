-- Of an idle session the last statement is ours; so is what opens and settles a handler's
-- transaction.
SELECT state || ': ' || query FROM pg_stat_activity
WHERE pid = %(pid)s AND state <> 'idle' AND query NOT LIKE '%%cmdbus.transaction%%';
