"""A browser that is installed on this machine, driven by playwright, which downloads none.

As a program it only says whether there is one; its exit code is 1 if there is none.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: The path of a browser, for machines that have it under none of the names.
VARIABLE = "CMDBUS_TEST_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    f"there is no browser: install Chromium (on Debian: apt install chromium), or name one in"
    f" {VARIABLE}"
)
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def find_browser() -> str | None:
    """Its path."""
    named = os.environ.get(VARIABLE)
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


@contextmanager
def started_browser(executable: str) -> Iterator["Browser"]:
    """One without windows, whose files are all removed at the end of the block.

    Until then this thread runs no event loop of its own: playwright's counts as running.
    """
    from playwright.sync_api import sync_playwright  # 0.3 s

    with TemporaryDirectory(prefix="cmdbus-browser-", ignore_cleanup_errors=True) as directory:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"HOME": directory, "TMPDIR": directory}
        with patch.dict(os.environ, TMPDIR=directory):  # for the driver, which makes profiles there
            playwright = sync_playwright().start()
        try:
            browser = playwright.chromium.launch(executable_path=executable, env={**environment})
            try:
                yield browser
            finally:
                browser.close()
        finally:
            playwright.stop()


if __name__ == "__main__":
    if find_browser() is None:
        sys.exit(f"error: {MISSING}")
