SELECT {schema}.suspect_waits(%(types)s::text[], %(losses)s::smallint);
