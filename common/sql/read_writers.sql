SELECT {schema}.writers();
