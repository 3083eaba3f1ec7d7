"""The tests of Django once more with its latest version, in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
_FIND = f"source {SCRIPTS}/venv.sh; find_python 3.12 || find_python 3.13 || find_python 3.14"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (SCRIPTS / "test").exists(), reason="needs the checkout's scripts")
def test_the_tests_of_django_pass_with_its_latest_version(tmp_path: Path) -> None:
    if subprocess.run(["bash", "-c", _FIND], capture_output=True).returncode:
        pytest.skip("the latest Django needs Python 3.12 or newer, which is not on this machine")
    output = tmp_path / "output"
    # Files of its own tests are no leftovers of this one.
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    with output.open("wb") as log:
        done = subprocess.run(
            [SCRIPTS / "test", "--django"], env=environment, stdout=log, stderr=log, timeout=1100
        )
    print(output.read_text()[-10_000:])
    assert done.returncode == 0
