"""Runs the example: a database with PGMQ and two bridges, a fleet, and the program of PGMQ."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import psycopg
from benches.servers import fresh_database, server
from lab.instances import SCRIPTS, Instance, InstanceOptions, end
from lab.pgmq_schema import install_pgmq
from lab.script import run_script

from cmdbus import CommandBus
from cmdbus.errors import CmdbusError

NAME = "pgmq-orders"
_SCHEMA = """
    CREATE TABLE receipt (
        id integer GENERATED ALWAYS AS IDENTITY, number integer NOT NULL UNIQUE,
        amount integer NOT NULL, tenant text)"""
_CREATE = "SELECT pgmq.create(%s)"
_READY_S, _LOOK_S, _PRODUCES_S = 60.0, 0.05, 60.0


@click.command(name=NAME)
@click.option("--orders", type=click.IntRange(1), default=10, show_default=True)
@click.option("--dsn", help="A server, whose user may make databases; else one of its own.")
def run(orders: int, dsn: str | None) -> None:
    """Let a program that knows only PGMQ write orders into a queue, and a fleet charge them.

    One bridge makes a command of each message, another one a message of each reply. The last order
    is too dear.
    """
    with server(dsn, NAME) as any_dsn, fresh_database(any_dsn, "orders") as fresh:
        prepare(fresh)
        with tempfile.TemporaryDirectory(prefix="cmdbus-orders-") as directory:
            options = InstanceOptions(
                app="pgmq_orders.handlers:registry", dsn=fresh, procs=2, threads=4
            )
            fleet = Instance("orders", options, Path(directory))
            try:
                fleet.start()
                await_ready(fleet)
                produce(fresh, orders)
            finally:
                end([fleet])


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, CommandBus(dsn) as bus:
        install_pgmq(connection)
        connection.execute(_SCHEMA)
        for queue in ("orders", "receipts"):
            connection.execute(_CREATE, (queue,))
        bus.bridges.add("orders", "orders", "Charge", direction="in", reply_to="orders.replies")
        bus.bridges.add("receipts", "orders.replies", direction="out")


def await_ready(fleet: Instance) -> None:
    deadline = time.monotonic() + _READY_S
    while not fleet.is_ready:
        if fleet.code is not None or time.monotonic() > deadline:
            raise CmdbusError(f"the fleet is not ready:\n{fleet.last_output()}")
        time.sleep(_LOOK_S)


def produce(dsn: str, orders: int) -> None:
    """The program, with an environment in which there is nothing of cmdbus."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "pgmq_orders" / "producer.py", str(orders)],
        env={**os.environ, "DATABASE_URL": dsn},
        timeout=_PRODUCES_S,
        check=False,
    )
    if done.returncode:
        raise CmdbusError(f"the program of PGMQ ended with {done.returncode}")


if __name__ == "__main__":
    run_script(run, "everything is ended, its database dropped")
