SELECT {schema}.promote(%(count)s);
