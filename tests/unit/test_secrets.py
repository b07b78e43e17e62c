"""Secrets on a machine with other users: files that they may read, directories that they own, core files.

A mismatch means that another user of the machine learns a password or a key, or has a program of theirs run.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.broker.cli.commands.user import new_password
from headgate.broker.client.address import parse
from headgate.broker.runtime import secret_files
from headgate.broker.runtime.errors import FatalError, InvalidError
from headgate.pipelines import java


@pytest.fixture
def open_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which other users may read files: pytest's own directories are private, as far as the check can see."""
    real = os.stat

    def seen(path: str | int) -> os.stat_result:
        found = real(path)
        is_above = Path(str(path)) in (tmp_path, *tmp_path.parents)
        return os.stat_result((found.st_mode | 0o5, *found[1:])) if is_above else found

    monkeypatch.setattr(os, "stat", seen)
    return tmp_path


def _secret(place: Path, mode: int) -> Path:
    path = place / "secret"
    path.write_text("planted")
    path.chmod(mode)
    return path


READERS: list[Callable[[str], object]] = [
    new_password,
    lambda path: parse(f"tls://localhost:1?user=a&password_file={path}").security.metadata(),  # type: ignore[union-attr]
    lambda path: parse(f"tls://localhost:1?token_file={path}").security.metadata(),  # type: ignore[union-attr]
    lambda path: parse(f"tls://localhost:1?certificate={path}").security.files(),  # type: ignore[union-attr]
]


@pytest.mark.parametrize("read", READERS, ids=["new password", "password", "token", "key"])
def test_a_secret_that_all_users_may_read_is_refused(open_place: Path, read: Callable[[str], object]) -> None:
    read(str(_secret(open_place, 0o640)))
    with pytest.raises(InvalidError, match="chmod o="):
        read(str(_secret(open_place, 0o644)))
    link = open_place / "link"
    link.symlink_to(open_place / "secret")
    with pytest.raises(InvalidError, match="chmod o="):
        read(str(link))


def test_a_private_directory_or_another_owner_is_enough(open_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(_secret(open_place, 0o644))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    secret_files.check(path)  # this user cannot change it: an orchestrator has mounted it
    monkeypatch.undo()
    (inner := open_place / "inner").mkdir(mode=0o700)
    secret_files.check(str(_secret(inner, 0o644)))
    secret_files.check(str(inner / "missing"))


def test_a_directory_of_another_user_is_not_used_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    place = java.cache_directory({})
    assert java.cache_directory({}) == place and place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o777)
    with pytest.raises(FatalError, match="another user may change"):
        java.cache_directory({})
    place.rmdir()
    place.symlink_to(tmp_path)
    with pytest.raises(FatalError, match="another user may change"):
        java.cache_directory({})


def test_a_broker_leaves_no_core_file() -> None:
    code = (
        "import resource; from headgate.broker.runtime.secret_files import leave_no_core; leave_no_core();"
        "print(*resource.getrlimit(resource.RLIMIT_CORE))"
    )
    soft, hard = map(int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split())
    assert soft <= 1 and hard == resource.getrlimit(resource.RLIMIT_CORE)[1]
