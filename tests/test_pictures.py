"""The pictures of the operators' page, which scripts/pictures takes."""

import re
import tomllib
from pathlib import Path

import pytest

from cmdbus.web.views import VIEWS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "common" / "web"
MAX_BYTES = 1_000_000

pytestmark = pytest.mark.skipif(
    not (PAGE / "README.md").exists(), reason="reads the checkout, and there is none here"
)


def pictures() -> list[Path]:
    return sorted((PAGE / "pictures").glob("*"))


def test_there_is_a_picture_of_each_view_in_light_and_in_dark() -> None:
    views = {name for name in VIEWS if (PAGE / "static" / "views" / f"{name}.js").exists()}
    taken = {tuple(file.stem.split("-")) for file in pictures()}
    assert taken == {(view, scheme) for view in views for scheme in ("light", "dark")}


def test_the_page_of_the_pictures_shows_all_of_them() -> None:
    shown = re.findall(r'(?:srcset|src)="(pictures/[^"]+)"', (PAGE / "README.md").read_text())
    assert sorted(shown) == [str(file.relative_to(PAGE)) for file in pictures()]


def test_the_readme_shows_the_overview() -> None:
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', (ROOT / "README.md").read_text())
    assert [Path(path).name for path in shown] == ["overview-dark.webp", "overview-light.webp"]
    assert all((ROOT / path).exists() for path in shown)


def test_the_pictures_are_small_and_no_part_of_the_package() -> None:
    assert 0 < sum(file.stat().st_size for file in pictures()) < MAX_BYTES
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = [PAGE / pattern for pattern in settings["package-data"]["cmdbus.web"]]
    assert not any(file.match(str(pattern)) for pattern in data for file in pictures())
