SELECT {schema}.retain_incarnations(%(living)s::bigint[]);
