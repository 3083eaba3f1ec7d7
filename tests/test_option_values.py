"""Values of options, as people write them."""

import os
from pathlib import Path

import pytest

from cmdbus.proc import usable_cpus
from cmdbus.supervisor.cli.values import address, seconds, size, whole


def test_values_are_what_people_write() -> None:
    assert {size(text) for text in ("64M", "64MB", "64MiB", "67108864")} == {64 * 1024**2}
    assert size("1g") == 1024**3
    assert address(":8080") == ("127.0.0.1", 8080)
    assert address("0.0.0.0:1") == ("0.0.0.0", 1)
    assert whole("0", at_least=0) == 0
    for wrong in ("", "512", "1.5G", "1X", "-1M", "\u0661M"):
        with pytest.raises(ValueError):
            size(wrong)
    for wrong in ("", "0", "-1", "nan", "inf", "1 2", "1e99"):
        with pytest.raises(ValueError):
            seconds(wrong)
    for wrong in ("", "8080", "host", "::1:80", ":99999", "a b:1"):
        with pytest.raises(ValueError):
            address(wrong)


def test_a_quota_leaves_fewer_cpus_than_the_machine_has(tmp_path: Path) -> None:
    all_of_them = len(os.sched_getaffinity(0))
    for text, expected in (("max 100000", all_of_them), ("150000 100000", min(2, all_of_them))):
        (tmp_path / "cpu.max").write_text(text + "\n")
        assert usable_cpus(tmp_path) == expected
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cpus(tmp_path) == 1
    assert usable_cpus(tmp_path / "nowhere") == all_of_them
