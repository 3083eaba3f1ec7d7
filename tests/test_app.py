"""The user's handlers, found by MODULE:REGISTRY, and the sentences when they are not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdbus.errors import AppError
from cmdbus.worker import Worker
from cmdbus.worker.boot.app import load

HANDLERS = """
from cmdbus import HandlerRegistry

registry = HandlerRegistry()
registry.register("payments", "Debit", lambda command, context: None)

@registry.handler("payments", "Refund")
def refund(command, context):
    pass

class Shop:
    registry = registry

def make():
    return registry

def make_for(customer):
    return registry

async def make_later():
    return registry

def fail():
    raise KeyError("no such customer")

empty = HandlerRegistry()
number = 4
"""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("shop_app").mkdir()
    for name, text in (
        ("__init__", ""),
        ("handlers", HANDLERS),
        ("broken", "import shop_app.handlers\n1 / 0\n"),
        ("needy", "import psycopg3\n"),
        ("leaving", "raise SystemExit('no licence')\n"),
        ("wrong", "def f(:\n"),
    ):
        Path(f"shop_app/{name}.py").write_text(text)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize("path", ["registry", "Shop.registry", "make"])
def test_the_registry_is_found_in_the_working_directory(path: str) -> None:
    assert load(f"shop_app.handlers:{path}").domains == ["payments"]


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("shop_app", "must be MODULE:REGISTRY, for example shop.handlers:registry, not 'shop_app'"),
        ("shop_app/handlers.py:registry", "for example shop_app.handlers:registry, not"),
        ("shop_app..x:registry", "must be MODULE:REGISTRY"),
        ("shop_ap.handlers:registry", "there is no module 'shop_ap' in "),
        ("shop_ap:registry", "or where Python looks: did you mean 'shop_app'?"),
        ("shop_app.handler:r", "'shop_app.handler' in shop_app: did you mean 'shop_app.handlers'?"),
        ("shop_app.handlers:regitsry", "'shop_app.handlers' has no 'regitsry': did you mean 'regi"),
        ("shop_app.handlers:zz", "has no 'zz': its registries are registry, empty"),
        ("shop_app.handlers:Shop.regist", "shop_app.handlers:Shop has no 'regist': did you mean"),
        (
            "shop_app.handlers:number",
            "handlers:number is of type int, and must be a HandlerRegistry",
        ),
        ("shop_app.handlers:empty", "handlers:empty has no handlers: the modules that register"),
        ("shop_app.handlers:make_for", "without arguments to make the registry: missing a requi"),
        (
            "shop_app.handlers:refund",
            "is a handler, and must be the registry that holds it: shop_app.handlers:registry",
        ),
        ("shop_app.handlers:make_later", "handlers:make_later is async"),
    ],
)
def test_a_mistake_is_said_in_a_sentence_with_the_nearest_name(app: str, sentence: str) -> None:
    with pytest.raises(AppError) as error:
        load(app)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "of_python"), [("queue", "queue.py"), ("gc", "built into Python")]
)
def test_a_file_that_a_module_of_python_hides_is_named(name: str, of_python: str) -> None:
    Path(f"{name}.py").write_text(HANDLERS)
    with pytest.raises(AppError) as error:
        load(f"{name}:registry")
    sentence = str(error.value)
    assert sentence.startswith(f"module {name!r} has no 'registry': it is ")
    assert sentence.endswith(f"{of_python}; give {Path(f'{name}.py').absolute()} another name")


@pytest.mark.parametrize(
    ("app", "lines"),
    [
        ("broken:registry", ["importing shop_app.broken failed:", "1 / 0", "ZeroDivisionError"]),
        ("needy:registry", ["importing shop_app.needy failed:", "import psycopg3", "No module"]),
        ("leaving:registry", ["importing shop_app.leaving failed:", "SystemExit: no licence"]),
        ("wrong:registry", ["importing shop_app.wrong failed:", "def f(:", "SyntaxError"]),
        ("handlers:fail", ["calling shop_app.handlers:fail failed:", "no such customer"]),
    ],
)
def test_what_the_users_code_raises_is_shown_with_its_traceback(app: str, lines: list[str]) -> None:
    with pytest.raises(AppError) as error:
        load(f"shop_app.{app}")
    text = str(error.value)
    assert all(line in text for line in lines), text
    assert "worker/app.py" not in text and "importlib" not in text


def test_without_an_app_there_is_nothing_to_run() -> None:
    with pytest.raises(AppError, match="--app MODULE:REGISTRY"):
        load(None)


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = Path.cwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        with pytest.raises(AppError, match=r"the working directory of this process is gone"):
            load("shop:registry")
    finally:
        os.chdir(before)


PATCHES = """
import sys, threading, time, _thread, select
from cmdbus.errors import AppError
from cmdbus.worker.boot.app import load

def outcome():
    try:
        load("shop_app.handlers:registry")
    except AppError as error:
        return str(error)
    return "loaded"

def wrong(*args): ...

start = threading.Thread.start
threading.Thread.start = lambda self: start(self)
time.monotonic = time.time = lambda: 0.0
print(outcome())
for module, name in ((_thread, "start_new_thread"), (_thread, "allocate_lock"),
                     (time, "sleep"), (select, "select")):
    before = getattr(module, name)
    setattr(module, name, wrong)
    sentence = outcome()
    setattr(module, name, before)
    print(sentence)
"""


@pytest.mark.process
def test_an_application_that_patches_threads_is_refused_and_a_wrapped_start_or_clock_is_not() -> (
    None
):
    done = subprocess.run(
        [sys.executable, "-c", PATCHES], capture_output=True, text=True, check=True, timeout=20
    )
    harmless, *refused = done.stdout.splitlines()
    assert harmless == "loaded"
    names = ("_thread.start_new_thread", "_thread.allocate_lock", "time.sleep", "select.select")
    for sentence, name in zip(refused, names, strict=True):
        assert f"patched ({name} by __main__)" in sentence and "monkey.patch_all()" in sentence


def test_a_worker_of_ones_own_is_refused_with_the_same_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker("host=nowhere", load("shop_app.handlers:registry"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(AppError, match=r"patched \(time.sleep by test_app\)"):
        worker.run()
