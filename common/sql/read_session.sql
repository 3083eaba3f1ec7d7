SELECT state || ': ' || query FROM pg_stat_activity WHERE pid = %(pid)s;
