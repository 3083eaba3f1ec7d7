"""The schema of the embedded server: each program that starts the server installs it."""

from pathlib import Path

from cmdbus.errors import CmdbusError, SchemaError


def install_embedded(dsn: str, schema: str, directory: Path) -> None:
    """Installs or upgrades `schema` on the server whose files are in `directory`.

    Loads the database driver. A CmdbusError says why it is not possible.
    """
    from cmdbus.database.schema import install
    from cmdbus.database.sentences import in_one_sentence

    try:
        with in_one_sentence():
            install(dsn, schema)
    except SchemaError as error:
        raise SchemaError(f"{error}; on this embedded server: rm -r {directory}") from None
    except CmdbusError as error:
        raise CmdbusError(f"the schema could not be installed: {error}") from None
