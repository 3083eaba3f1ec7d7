SELECT {schema}.promote(%(rows)s, %(bytes)s, %(skipped)s::bigint[]);
