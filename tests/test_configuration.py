"""What `cmdbus-supervise` is given: options, then the environment, then a file."""

from dataclasses import fields
from pathlib import Path

import pytest
from cli import supervise
from configuring import nothing_told as nothing_told
from configuring import refused, settings_of, sources

from cmdbus.errors import CmdbusError
from cmdbus.proc import usable_cpus
from cmdbus.settings import Settings
from cmdbus.supervisor.cli.setting import SETTINGS
from cmdbus.supervisor.cli.supervise import main
from cmdbus.timeouts import Timeouts

SECRET = "s3cr3t"


def test_without_a_word_everything_has_the_documented_default() -> None:
    assert settings_of() == Settings(procs=usable_cpus())
    assert set(sources().values()) == {"default"}


def test_a_variable_whose_name_is_mistyped_is_warned_of_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("THREAD", "DNS", "PG_BIN", "RUN_AS", "DSN_FILE", "OF_THE_APPLICATION"):
        monkeypatch.setenv(f"CMDBUS_{name}", SECRET)
    shown = supervise("--check", "--procs", "1", "--dsn", "host=/nonexistent").stderr
    assert shown.splitlines()[:2] == [
        "Warning: the environment variable CMDBUS_DNS sets nothing: did you mean 'CMDBUS_DSN'?",
        "Warning: the environment variable CMDBUS_THREAD sets nothing: did you mean "
        "'CMDBUS_THREADS'?",
    ]
    assert "sets nothing" not in "".join(shown.splitlines()[2:]) and SECRET not in shown


def test_every_option_reaches_the_settings() -> None:
    assert settings_of(
        *("--app", "shop:registry", "--dsn", "host=db", "--schema", "other", "--procs", "4"),
        *("--threads", "3", "--domain", "b", "--domain", "a", "--domain", "b"),
        *("--statement-timeout", "1", "--pool-timeout", "2", "--visibility-timeout", "2.5"),
        *("--thread-timeout", "3", "--watchdog-timeout", "4", "--poll-interval", "0.1"),
        *("--wake", "poll", "--wake-jitter", "10", "--drain-timeout", "5"),
        *("--max-commands", "1000", "--max-rss", "512M", "--max-age", "3600"),
        *("--claim-bytes", "1M", "--tag", "gpu", "--tag", "eu", "--tag", "gpu"),
        *("--priority", "0-4", "--age-share", "10"),
        *("--http", ":8080", "--name", "two", "--runtime-dir", "run", "--log-format", "json"),
        *("--log-level", "debug", "--drain"),
    ) == Settings(
        app="shop:registry",
        dsn="host=db",
        schema="other",
        procs=4,
        threads=3,
        domains=("b", "a"),
        tags=("eu", "gpu"),
        priorities=(0, 4),
        age_share=10,
        timeouts=Timeouts(statement=1, pool=2, lease=2.5, thread=3, watchdog=4),
        poll_interval=0.1,
        listen=False,
        wake_jitter_ms=10,
        drain_timeout=5,
        max_commands=1000,
        max_rss_bytes=512 * 1024**2,
        claim_bytes=1024**2,
        max_age=3600,
        http=("127.0.0.1", 8080),
        name="two",
        runtime_dir=Path.cwd() / "run",
        log_format="json",
        log_level="debug",
        drain=True,
    )


def test_no_setting_is_without_an_option() -> None:
    elsewhere = {"dsn", "schema", "timeouts"}
    for owner in (Settings, Timeouts):
        attributes = {setting.attribute for setting in SETTINGS if setting.owner is owner}
        assert attributes == {field.name for field in fields(owner)} - elsewhere


def test_an_option_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("cmdbus.toml").write_text("procs = 2\nthreads = 2\nname = 'file'\n")
    monkeypatch.setenv("CMDBUS_PROCS", "3")
    monkeypatch.setenv("CMDBUS_THREADS", "3")
    now = settings_of("--procs", "4")
    assert (now.procs, now.threads, now.name) == (4, 3, "file")
    found = sources("--procs", "4")
    named = [found[name] for name in ("procs", "threads", "name", "schema")]
    assert named == ["--procs", "CMDBUS_THREADS", "cmdbus.toml", "default"]


def test_each_option_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for parameter in main.params:
        name = (parameter.name or "").upper()
        if name not in ("HELP", "VERSION"):
            assert f"CMDBUS_{name}" in (parameter.envvar or ())
    monkeypatch.setenv("CMDBUS_DOMAIN", "payments orders")
    monkeypatch.setenv("CMDBUS_DRAIN", "1")
    monkeypatch.setenv("CMDBUS_VERSION", "1.2")  # of another program
    monkeypatch.setenv("CMDBUS_HELP", "1")
    assert settings_of().domains == ("payments", "orders")
    assert settings_of().drain
    monkeypatch.setenv("CMDBUS_DOMAIN", "payments,orders")
    assert "it must be a letter" in refused()
    assert "--domain A --domain B, as CMDBUS_DOMAIN='A B', or as a list" in refused()


def test_the_file_may_be_the_projects_own_and_says_things_naturally() -> None:
    Path("pyproject.toml").write_text(
        '[project]\nname = "shop"\n[tool.cmdbus]\nprocs = 3\nmax-rss = "1G"\nmax_age = 60\n'
        'statement-timeout = 2.5\ndomain = ["a", "b"]\ndrain = true\nhttp = "[::1]:80"\n'
    )
    now = settings_of()
    assert (now.procs, now.max_rss_bytes, now.max_age) == (3, 1024**3, 60.0)
    assert (now.timeouts.statement, now.domains, now.drain) == (2.5, ("a", "b"), True)
    assert now.http == ("::1", 80)
    assert sources()["max-rss"] == "pyproject.toml"
    assert settings_of("--max-rss", "off").max_rss_bytes is None


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("cmdbus.toml", "thread = 4", "'thread', which is no setting: did you mean 'threads'?"),
        ("cmdbus.toml", "zzz = 4", "'zzz', which is no setting: there are age-share, app, "),
        ("cmdbus.toml", "help = true", "'help', which is no setting"),
        ("cmdbus.toml", "threads = true", "'threads' must be a number or a string"),
        ("cmdbus.toml", "threads = [1]", "'threads' must be a number or a string"),
        ("cmdbus.toml", "domain = [1]", "'domain' must be a list of strings"),
        ("cmdbus.toml", "drain = 1", "'drain' must be true or false"),
        ("cmdbus.toml", "max-rss = '1G'\nmax_rss = '2G'", "has 'max-rss' twice"),
        ("cmdbus.toml", "threads = ", "cmdbus.toml is not valid TOML"),
        ("pyproject.toml", "tool.cmdbus = 3", "must be a table: [tool.cmdbus]"),
        ("pyproject.toml", "[tool.cmdbus]\nprcs = 3", "did you mean 'procs'?"),
    ],
)
def test_a_mistake_in_the_file_is_an_error_with_the_nearest_name(
    file: str, text: str, sentence: str
) -> None:
    Path(file).write_text(text)
    assert sentence in refused()


def test_the_same_block_can_stand_in_either_file_and_not_in_both() -> None:
    block = '[tool.cmdbus]\napp = "shop.handlers:registry"\nprocs = 4\nembedded = true\n'
    for name in ("pyproject.toml", "cmdbus.toml"):
        Path(name).write_text(block)
        assert (settings_of().procs, sources()["procs"]) == (4, name)
        Path(name).unlink()
    Path("cmdbus.toml").write_text("threads = 3\n" + block)
    assert "settings in [tool.cmdbus] and above: keep one" in refused()
    Path("pyproject.toml").write_text("[tool.other]\nprocs = 3\n")
    Path("cmdbus.toml").write_text(block)
    assert settings_of().procs == 4
    Path("pyproject.toml").write_text(block)
    assert "keep them in one" in refused()


def test_a_broken_file_does_not_keep_help_from_helping() -> None:
    Path("cmdbus.toml").write_text("threads = ")
    done = supervise("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "CMDBUS_WATCHDOG_TIMEOUT" in done.stdout


def test_the_dsn_that_was_given_nearest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("far").write_text("host=far")
    Path("near").write_text("host=near")
    Path("cmdbus.toml").write_text('dsn-file = "far"\n')
    assert (settings_of().dsn, sources()["dsn"]) == ("host=far", "the file far")
    monkeypatch.setenv("DATABASE_URL", "host=environment")
    assert settings_of().dsn == "host=environment"
    assert sources()["dsn"] == "DATABASE_URL"
    monkeypatch.setenv("CMDBUS_DSN_FILE", "near")
    assert settings_of().dsn == "host=near"
    assert settings_of("--dsn", "host=option").dsn == "host=option"
    monkeypatch.setenv("CMDBUS_DSN", "host=own")
    assert "CMDBUS_DSN and CMDBUS_DSN_FILE both name a database" in refused()
    assert settings_of("--dsn-file", "far").dsn == "host=far"
    monkeypatch.delenv("CMDBUS_DSN")
    assert "give one of them" in refused("--dsn", "host=option", "--dsn-file", "near")
    Path("cmdbus.toml").write_text('dsn-file = "far"\ndsn = "host=toml"\n')
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("CMDBUS_DSN_FILE")
    assert "give one of them" in refused()


def test_an_app_without_a_database_is_refused_unless_the_embedded_one_is_asked_for() -> None:
    for arguments in (["--app", "shop:registry"], ["--app", "shop:registry", "--check"]):
        done = supervise(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("Error: shop:registry has no database: name it with --dsn")
        assert "--embedded" in done.stderr and len(done.stderr.splitlines()) == 1
    with pytest.raises(CmdbusError):
        settings_of("--app", "shop:registry")
    assert settings_of("--app", "shop:registry", "--embedded").dsn is None
    assert sources("--app", "shop:registry", "--embedded")["dsn"] == "--embedded"


def test_the_embedded_server_and_a_dsn_are_the_nearest_one_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = ("--app", "shop:registry")
    Path("cmdbus.toml").write_text("embedded = true\n")
    assert settings_of(*app).dsn is None
    assert sources(*app)["dsn"] == "cmdbus.toml"
    monkeypatch.setenv("DATABASE_URL", "host=environment")
    assert settings_of(*app).dsn == "host=environment"
    assert settings_of(*app, "--embedded").dsn is None
    assert "--embedded and --dsn both name a database" in refused(
        *app, "--embedded", "--dsn", "host=option"
    )
    monkeypatch.setenv("CMDBUS_EMBEDDED", "1")
    assert "CMDBUS_EMBEDDED and DATABASE_URL both name a database" in refused(*app)
    Path("near").write_text("host=near")
    assert settings_of(*app, "--dsn-file", "near").dsn == "host=near"


def test_no_secret_is_in_what_is_shown() -> None:
    now = settings_of("--dsn", f"postgresql://ann:{SECRET}@db/x")
    assert SECRET not in repr(now)
    assert SECRET in (now.dsn or "")
