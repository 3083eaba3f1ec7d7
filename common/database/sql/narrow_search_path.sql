-- Until the transaction ends. The installer may be a superuser: no operator or function in a
-- schema where other roles may CREATE is called here, even if its argument types match better.
SET LOCAL search_path = pg_catalog, pg_temp;
