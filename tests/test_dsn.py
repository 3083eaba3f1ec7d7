"""Data source names: every mistake gets its sentence, and no password is shown."""

import pytest

from cmdbus.database.dsn import (
    Parts,
    complete,
    complete_producers,
    describe,
    parse,
    redact,
    with_defaults,
)

SECRET = "s3cr3t"


def test_uris_and_keywords_mean_the_same() -> None:
    assert parse(f"postgresql://ann:{SECRET}@db:5433/shop") == parse(
        f"host=db port=5433 user=ann password={SECRET} dbname=shop"
    )


@pytest.mark.parametrize(
    ("dsn", "sentence"),
    [
        (f"postgresql+asyncpg://ann:{SECRET}@db/shop", "it must be postgresql://"),
        (f"mysql://ann:{SECRET}@db/shop", "begins with another scheme"),
        (f"postgresql://ann:x@{SECRET}@db/shop", 'host contains "@"'),
        (f"postgresql://ann:{SECRET}/x@db/shop", 'dbname contains "@"'),
        (f"postgresql://ann:{SECRET}@[db/shop", "neither a URI"),
        (f"{SECRET}", "neither a URI"),
        (f"host=db {SECRET}", "neither a URI"),
        (f"postgresql://ann:12/{SECRET}@db/shop", 'dbname contains "@"'),
        ("postgresql://ann\0@db", "NUL character"),
        (f"host=localhost:{SECRET}", "give the port by itself"),
        (f"user=ann:{SECRET} host=db", 'user contains ":"'),
        (f"dbname='host=db password={SECRET}'", 'dbname contains "="'),
        (f"host=db,password={SECRET}", 'host contains "="'),
        (f"postgresql://ann:{SECRET}@db/shop?pool_size=5", "parameter 'pool_size' is none of"),
        (f"postgresql://ann:{SECRET}@db/a?sslmode=require&pool_size=5", "parameter 'pool_size'"),
        (f"postgresql://ann:x/?{SECRET}=b@db/shop", "percent-encode"),
        ("hots=localhost dbname=shop", "keyword 'hots' is none of .*: did you mean 'host'?"),
        (f"hots=db password={SECRET}", "keyword 'hots' is none of"),
        (f"{SECRET}=b", "a keyword that is none of PostgreSQL's"),
        ("host=db password=a hots=b", "a keyword that is none of PostgreSQL's"),
        (f"host=db password=a {SECRET}=b", "a keyword that is none of PostgreSQL's"),
        (f"postgresql://ann:{SECRET}@db/shop\npostgresql://db/other", "more than one line"),
        ("postgresql://db/shop\nother", "more than one line"),
        (f"mysql+{SECRET}://db", "another scheme"),
    ],
)
def test_a_mistake_in_a_dsn_is_named_without_showing_the_password(dsn: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        parse(dsn)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_a_dsn_is_described_without_its_password() -> None:
    parts = parse(f"postgresql://ann:{SECRET}@db:5433/shop")
    assert describe(parts) == "database 'shop' at db port 5433 as ann"
    assert redact(f"no {SECRET} here", parts) == "no *** here"


def test_every_connection_gets_keepalives_unless_the_user_says_otherwise_and_settings() -> None:
    parts = complete(
        parse("host=db tcp_user_timeout=9000 options='-c work_mem=1MB'"),
        application_name="cmdbus:x",
        settings={"lock_timeout": "1s", "default_transaction_isolation": "read committed"},
    )
    assert parts["tcp_user_timeout"] == "9000"
    assert parts["keepalives_idle"] == "2"
    options = parts["options"]
    assert options.startswith("-c work_mem=1MB "), "so that those of the bus win"
    assert options.endswith("-c lock_timeout=1s -c default_transaction_isolation=read\\ committed")


def test_defaults_give_way_to_the_dsn_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(dsn: str) -> Parts:
        settings = {"statement_timeout": "10s"}
        made = with_defaults(dsn, settings=settings, application_name="page")
        return complete_producers(parse(made))

    plain = completed("host=db password='it\\'s a secret'")
    assert plain["application_name"] == "page" and plain["password"] == "it's a secret"
    assert " -c statement_timeout=10s " in f" {plain['options']} "
    named = completed("host=db application_name=mine options='-c statement_timeout=1s'")
    assert named["application_name"] == "mine"
    assert named["options"].rindex("timeout=1s") > named["options"].index("timeout=10s")
    monkeypatch.setenv("PGAPPNAME", "environment")
    assert completed("host=db")["application_name"] == "environment"
