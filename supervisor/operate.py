"""The operator's command, `cmdbus`. Each sub-command imports what it needs.

Exit codes: 0 done, 1 it could not be done (one sentence on stderr), 2 usage.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from cmdbus.checks import check_schema
from cmdbus.errors import CmdbusError
from cmdbus.supervisor.options import RedactingGroup, database_options


@click.group(cls=RedactingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cmdbus")
def main() -> None:
    """Operate a cmdbus: a command bus on PostgreSQL."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)


@main.command()
@database_options
@click.option("--worker", metavar="ROLE", multiple=True, help="Grant ROLE a worker's rights.")
@click.option("--producer", metavar="ROLE", multiple=True, help="Grant ROLE a producer's rights.")
@click.option("--operator", metavar="ROLE", multiple=True, help="Grant ROLE an operator's rights.")
@click.option("--monitor", metavar="ROLE", multiple=True, help="Grant ROLE a monitor's rights.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def init(
    dsn: str | None,
    schema: str,
    worker: tuple[str, ...],
    producer: tuple[str, ...],
    operator: tuple[str, ...],
    monitor: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create the schema or upgrade it; safe to run again, and by many at once.

    \b
    Examples:
      cmdbus init --dsn postgresql://localhost/shop
      cmdbus init --dsn-file /etc/shop/dsn --producer web --worker fleet
    """
    from cmdbus.schema import install

    grants = {"worker": worker, "producer": producer, "operator": operator, "monitor": monitor}
    with _sentences():
        check_schema(schema)
    with _sentences(), _database(dsn) as where:
        done = install(where, schema, grants=grants)
    if as_json:
        click.echo(json.dumps({"schema": schema, **asdict(done)}))
    else:
        change = {0: "installed", done.after: "up to date"}.get(done.before, "upgraded")
        click.echo(f"schema {schema}: {change}, version {done.after}, in {done.database}")


@contextmanager
def _sentences() -> Iterator[None]:
    """Expected errors are one sentence, without a traceback."""
    try:
        yield
    except (CmdbusError, ValueError) as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _database(dsn: str | None) -> Iterator[str]:
    """The DSN to use; without one the embedded server runs meanwhile."""
    if dsn is not None:
        yield dsn
        return
    from cmdbus.embedded import EmbeddedPostgres

    with EmbeddedPostgres() as server:
        yield server.dsn
