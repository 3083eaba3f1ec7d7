SELECT {schema}.retain_domain(%(partition)s, %(domain)s, %(count)s);
