"""Everything that cmdbus raises by name.

CmdbusError
"""


class CmdbusError(Exception):
    """The root of all errors of cmdbus."""
