SELECT {schema}.retain(%(count)s);
