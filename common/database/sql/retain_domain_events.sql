SELECT {schema}.retain_domain_events();
