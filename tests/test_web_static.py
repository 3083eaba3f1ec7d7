"""The files of the page: small, without other hosts, and never writing markup."""

import re
from pathlib import Path

import pytest

from cmdbus.web import assets
from cmdbus.web.views import VIEWS

FILES = sorted(file for file in assets.FOLDER.rglob("*") if file.is_file())
#: Bytes of all files together as a browser gets them, and of those that one view needs as they
#: lie in the package.
MAX_SENT, MAX_OF_VIEW = 90_000, 150_000
#: What would make markup or code of a text, or needs a weaker policy than the page has.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
    r"|DOMParser|srcdoc|\beval\b|\bFunction\(|javascript:|\bstyle=|\son\w+=|<style|@import"
)
OTHER_HOST = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_files_are_small() -> None:
    sent = {file: len(_sent(file)) for file in FILES}
    assert sum(sent.values()) < MAX_SENT, sent
    views = [file.stat().st_size for file in FILES if file.parent.name == "views"]
    frame = sum(file.stat().st_size for file in FILES) - sum(views)
    assert frame + max(views) < MAX_OF_VIEW, (frame, views)


def _sent(file: Path) -> bytes:
    found = assets.find(file.relative_to(assets.FOLDER).as_posix(), accepts="gzip")
    assert found is not None and isinstance(found.body, bytes)
    return found.body


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_writes_no_markup_and_names_no_other_host(file: Path) -> None:
    text = file.read_text()
    assert not FORBIDDEN.search(text)
    assert not OTHER_HOST.search(text.replace(NAMESPACE, ""))


def test_all_that_a_file_imports_is_there() -> None:
    for file in FILES:
        if file.suffix != ".js":
            continue
        for name in re.findall(r'(?:from|import) "(\.[^"]+)"', file.read_text()):
            assert (file.parent / name).resolve() in FILES, f"{file.name} imports {name}"


def test_the_document_names_files_that_are_there() -> None:
    text = (assets.FOLDER / "index.html").read_text()
    for name in re.findall(r'(?:href|src)="static/([^"]+)"', text):
        assert assets.find(name), name


def test_all_that_a_file_leads_to_or_reads_is_there() -> None:
    pages = {file.stem for file in FILES if file.parent.name == "views"}
    to_page = re.compile(r'(?:\b(?:link|to)\(\[?"|"#/|data-view=")(\w+)')
    to_api = re.compile(r'\b(?:apiPath\(\[?|watch\(|get\()"(\w+)')
    for file in FILES:
        text = file.read_text()
        assert {*to_page.findall(text)} <= pages, file.name
        assert {*to_api.findall(text)} <= VIEWS.keys(), file.name


def test_each_class_of_the_files_has_its_style() -> None:
    style = (assets.FOLDER / "style.css").read_text()
    for file in FILES:
        if file.suffix == ".js":
            for names in re.findall(r'\bclass: "([^"]+)"', file.read_text()):
                for name in names.split():
                    # With a hyphen at its end it is the beginning of several.
                    end = "" if name.endswith("-") else r"(?![\w-])"
                    assert re.search(rf"\.{name}{end}", style), f"{file.name}: {name}"
