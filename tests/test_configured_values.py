"""The values that settings of `cmdbus-supervise` may have, and how others are refused."""

from pathlib import Path

import pytest
from cli import supervise
from configuring import nothing_told as nothing_told
from configuring import refused, settings_of

from cmdbus.errors import CmdbusError
from cmdbus.settings import ThreadRange
from cmdbus.worker.concurrency import MAX_THREADS

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("option", "text", "sentence"),
    [
        ("--priority", "4-0", "it must begin with the lower number, like 0-4, not '4-0'"),
        ("--priority", "11", "it must be priorities from 0 to 10, like 0-4 or 3, not '11'"),
        ("--priority", "high", "it must be priorities from 0 to 10, like 0-4 or 3, not 'high'"),
        ("--age-share", "101", "it must be a whole number from 0 to 100, not '101'"),
        ("--tag", "", "it must be a letter and up to 99 more"),
        ("--tag", "eu, gpu", "--tag A --tag B, as CMDBUS_TAG='A B', or as a list"),
    ],
)
def test_what_no_worker_can_select_by_is_refused(option: str, text: str, sentence: str) -> None:
    assert sentence in refused(option, text)


def test_every_duration_takes_the_same_units() -> None:
    for option, name in (
        ("--drain-timeout", "drain_timeout"),
        ("--poll-interval", "poll_interval"),
        ("--max-age", "max_age"),
    ):
        values = [getattr(settings_of(option, text), name) for text in ("1h", "90", "500ms")]
        assert values == [3600.0, 90.0, 0.5]
    timeouts = settings_of("--watchdog-timeout", "1h", "--thread-timeout", "5m").timeouts
    assert timeouts.thread == 300
    Path("cmdbus.toml").write_text('drain-timeout = "1m"\nmax-age = 2.5\n')
    assert (settings_of().drain_timeout, settings_of().max_age) == (60.0, 2.5)
    assert "it must be seconds, or like 500ms, 30s, 5m, 2h, 1d, not '1w'" in refused(
        "--drain-timeout", "1w"
    )


def test_a_wrong_value_is_one_sentence_that_says_where_it_is() -> None:
    Path("cmdbus.toml").write_text("threads = 0\n")
    wrong_url = f"http://ann:{SECRET}@db"
    dsn = f"--dsn=postgresql://ann:{SECRET}@db/x"
    ladder = "Error: --statement-timeout (40 s) must be less than --visibility-timeout (30 s)\n"
    for code, arguments, environment, text in (
        (2, [], {}, "(from cmdbus.toml): it must be a whole number from 1 to 128, or two "),
        (2, ["--procs", "0"], {}, "--procs: it must be a whole number from 1 to 512, not '0'."),
        (2, [], {"CMDBUS_PROCS": "x"}, "--procs (from CMDBUS_PROCS): it must be a whole number"),
        (2, ["--threads", "1", "--http", wrong_url], {}, "it must be HOST:PORT or :PORT"),
        (2, ["--threads", "1", dsn, "--schema", "X"], {}, "schema must be a-z"),
        (2, [], {"CMDBUS_DSN_FILE": "none"}, "(from CMDBUS_DSN_FILE): cannot read none: No such"),
        (3, ["--threads", "1", "--statement-timeout", "40"], {}, ladder),
    ):
        done = supervise(*arguments, **environment)
        assert (done.returncode, done.stdout) == (code, "")
        assert text in done.stderr
        assert SECRET not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--statement-timeout", "30"], "--statement-timeout (30 s) must be less than --visib"),
        (["--visibility-timeout", "35"], "--visibility-timeout (35 s) must be less than --thread"),
        (["--thread-timeout", "60"], "--thread-timeout (60 s) must be less than --watchdog-time"),
        (["--pool-timeout", "31"], "--pool-timeout (31 s) must not be more than --visibility-"),
        (
            ["--visibility-timeout", "20", "--thread-timeout", "70"],
            "--statement-timeout (25 s) must be less than --visibility-timeout (20 s); "
            "--thread-timeout (70 s) must be less than --watchdog-timeout (60 s); "
            "--pool-timeout (30 s) must not be more than --visibility-timeout (20 s)",
        ),
    ],
)
def test_the_ladder_is_refused_with_the_options_of_its_rungs(
    arguments: list[str], sentence: str
) -> None:
    with pytest.raises(CmdbusError) as error:
        settings_of(*arguments)
    assert str(error.value).startswith(sentence)


def test_polling_has_a_pace_of_its_own() -> None:
    assert settings_of().poll_interval == 60.0
    assert settings_of("--wake", "poll").poll_interval == 1.0
    assert settings_of("--wake", "poll", "--poll-interval", "5").poll_interval == 5.0


def test_a_jitter_of_more_than_10_ms_is_refused() -> None:
    assert settings_of().wake_jitter_ms == 0
    assert "from 0 to 10, not '11'" in refused("--wake-jitter", "11")


def test_more_threads_than_a_worker_may_have_are_refused() -> None:
    assert settings_of("--threads", str(MAX_THREADS)).threads == MAX_THREADS
    assert f"from 1 to {MAX_THREADS}" in refused("--threads", str(MAX_THREADS + 1))


def test_threads_are_a_number_or_a_range_which_the_file_may_give_too() -> None:
    fixed, wide = settings_of("--threads", "8"), settings_of("--threads", "2:32")
    assert (fixed.threads, fixed.thread_range) == (8, ThreadRange(8, 8))
    assert wide.threads == wide.thread_range == ThreadRange(2, 32)
    assert settings_of("--threads", "4:4").threads == 4
    Path("cmdbus.toml").write_text('threads = "2:9"\n')
    assert settings_of().threads == ThreadRange(2, 9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("8:2", "it begins with the least: write 2:8, not 8:2."),
        *(
            (text, f"it must be a whole number from 1 to 128, or two like 2:32, not {text!r}.")
            for text in ("0:4", "2:1000", "x", "2:", ":8", "1:2:3", "-1:4", "2 : 4")
        ),
    ],
)
def test_a_range_of_threads_that_cannot_be_is_refused_in_a_sentence(
    text: str, sentence: str
) -> None:
    assert f": {sentence}" in refused("--threads", text)
