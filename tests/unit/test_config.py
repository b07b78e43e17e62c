"""Settings: the source of a value, its syntax, and the error for a wrong one.

Runs `Settings.load` on made-up command lines, environments and TOML files. A mismatch means that an operator's setting is read
as something else, or that an error message does not name the setting, its value and the expected one.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from headgate.broker.runtime import config
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason


def test_defaults_are_valid() -> None:
    assert Settings.load([], {}) == Settings()
    assert Settings.from_values({item.name: getattr(Settings(), item.name) for item in fields(Settings)}) == Settings()


def test_precedence_is_command_line_environment_file_default(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('kafka_port = 1\ngrpc_port = 2\nhttp_port = 3\n[wal]\nflush_bytes = "1MiB"\nfsync = "never"\n')
    environment = {"HEADGATE_GRPC_PORT": "20", "HEADGATE_HTTP_PORT": "30", "HEADGATE_CONFIG": str(file)}
    settings = Settings.load(["--http-port", "300"], environment)
    assert (settings.kafka_port, settings.grpc_port, settings.http_port) == (1, 20, 300)
    assert (settings.wal_flush_bytes, settings.wal_fsync, settings.tail_bytes) == (1 << 20, "never", Settings().tail_bytes)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--wal-flush-bytes", "64MiB"], "wal_flush_bytes", 64 << 20),
        (["--wal_flush_bytes=64mib"], "wal_flush_bytes", 64 << 20),
        (["--wal.flush_bytes", "1.5 MiB"], "wal_flush_bytes", 3 << 19),
        (["--tail-bytes", "1GB"], "tail_bytes", 10**9),
        (["--tail-bytes=1048576"], "tail_bytes", 1 << 20),
        (["--wal-flush-interval-ms=2s"], "wal_flush_interval_ms", 2000),
        (["--wal-flush-interval-ms", "250"], "wal_flush_interval_ms", 250),
        (["--connection-idle-ms=1.5h"], "connection_idle_ms", 5_400_000),
        (["--auto-create-topics=no"], "auto_create_topics", False),
        (["--auto-create-topics", "false"], "auto_create_topics", False),
        (["--no-auto-create-topics"], "auto_create_topics", False),
        (["--auto-create-topics"], "auto_create_topics", True),
        (["--store", "s3://bucket/a=b"], "store", "s3://bucket/a=b"),
        (["--store=./a=b"], "store", "./a=b"),
    ],
)
def test_ways_to_write_a_value(arguments: list[str], name: str, value: object) -> None:
    assert getattr(Settings.load(arguments, {}), name) == value


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--kafka-port", "70000"], ["kafka_port", "70000", "from 0 to 65535"]),
        (["--kafka-port", "-1"], ["kafka_port", "-1", "whole number"]),
        (["--kafka-port", "٣"], ["kafka_port", "whole number"]),
        (["--kafka-port", "9" * 5000], ["kafka_port", "whole number"]),
        (["--wal-flush-bytes", "lots"], ["wal_flush_bytes", "lots", "such as 64MiB"]),
        (["--wal-flush-bytes", "1.0000001KiB"], ["wal_flush_bytes", "size"]),
        (["--wal-flush-interval-ms", "0"], ["wal_flush_interval_ms", "from 1ms to 1m"]),
        (["--wal-flush-interval-ms", "5MiB"], ["wal_flush_interval_ms", "duration"]),
        (["--wal-fsync", "sometimes"], ["wal_fsync", "sometimes", "always, interval, never"]),
        (["--auto-create-topics=maybe"], ["auto_create_topics", "maybe", "true or false"]),
        (["--store", ""], ["store", "empty"]),
        (["--store", "a\nb"], ["store"]),
        (["--wal-fsnc", "never"], ["did you mean `wal_fsync`"]),
        (["--zzz", "1"], ["unknown setting", "--help"]),
        (["--kafka-port"], ["expected a value", "--kafka-port"]),
        (["9092"], ["expected --setting value", "9092"]),
        (["--kafka-port", "1", "--kafka-port=2"], ["twice", "kafka_port"]),
        (["--kafka-port", "9095"], ["three ports must differ"]),
        (["--frame-bytes-max", "1GiB"], ["at most `inflight_bytes_max`", "256MiB", "1GiB"]),
        (["--config", "/no/such/file.toml"], ["cannot be read", "/no/such/file.toml"]),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_was_expected(arguments: list[str], parts: list[str]) -> None:
    with pytest.raises(InvalidError) as caught:
        Settings.load(arguments, {})
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert all(part in caught.value.message for part in parts), caught.value.message
    assert len(caught.value.message.splitlines()) == 1 or "\n" in arguments[-1]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kafka_port = ", "not TOML"),
        ("[wal]\nflush_bites = 1", "did you mean `wal_flush_bytes`"),
        ("wal_fsync = 1", "one of always"),
        ("kafka_port = true", "whole number"),
        ("kafka_port = 1.5", "whole number"),
        ("store = ['a']", "text"),
        ("wal_fsync = 'never'\n[wal]\nfsync = 'never'", "twice"),
        ("x = 1\n" * 1, "unknown setting"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InvalidError, match=part):
        Settings.load(["--config", str(tmp_path / "a.toml")], {})


def test_the_environment_may_hold_what_is_not_ours() -> None:
    environment = {
        "HEADGATE_CLUSTER": "10.0.0.1:9095",
        "HEADGATE_KAFKA_PORT": "tcp://10.0.0.1:9092",
        "HEADGATE_STORE": "",
        "PATH": "/",
    }
    assert Settings.load([], environment) == Settings()


def test_a_slip_in_the_environment_is_said() -> None:
    with pytest.raises(InvalidError, match=r"did you mean `HEADGATE_WAL_FSYNC`\? name=`HEADGATE_WAL_FSINC`"):
        Settings.load([], {"HEADGATE_WAL_FSINC": "never"})


def test_arguments_give_the_same_settings_again() -> None:
    settings = Settings.load(["--no-auto-create-topics", "--tail-bytes=3MB", "--store=/a b", "--wal-fsync=never"], {})
    assert Settings.load(settings.arguments(), {}) == settings
    assert Settings().arguments() == []


@pytest.mark.parametrize("item", fields(Settings), ids=lambda item: item.name)
def test_every_setting_says_what_it_is_and_in_which_unit(item: object) -> None:
    about = Settings.__dataclass_fields__[item.name]  # type: ignore[attr-defined]
    assert len(about.metadata["documentation"]) > 10
    assert (about.metadata["kind"] == "duration") == about.name.endswith("_ms")
    assert (about.metadata["kind"] == "size") == ("_bytes" in about.name)


def test_help_documents_every_setting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate.broker.cli.main", "broker", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for item in fields(Settings):
        assert config.flag_name(item.name) in done.stdout and config.environment_name(item.name) in done.stdout


def test_settings_import_nothing_but_the_standard_library() -> None:
    code = "import sys; import headgate.broker.runtime.config; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    tops = {name.partition(".")[0] for name in loaded} - {"headgate"}
    assert not {name for name in tops if name not in sys.stdlib_module_names and not name.startswith(("_", "sitecustomize"))}
