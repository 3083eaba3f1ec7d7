SELECT to_regclass('{schema}.migration')::text;
