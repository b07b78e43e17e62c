"""The packages of the kafkajs helper, installed by npm once per content of its package.json, into `build/` beside the sources."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import uuid
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
SOURCE = _ROOT / "tests" / "compat" / "kafkajs"


def missing() -> str | None:
    """The reason why kafkajs cannot run on this machine, or None."""
    absent = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not found" if absent else None


def install() -> Path:
    """Install the packages if they are missing. Returns the directory of `node_modules`. Raises RuntimeError when npm fails."""
    manifest = (SOURCE / "package.json").read_bytes()
    home = _ROOT / "build" / f"kafkajs-{hashlib.sha256(manifest).hexdigest()[:12]}"
    done = home / "installed"
    if done.exists():
        return home
    # Uses a new directory and renames it at the end: two test runs may install at the same time.
    fresh = home.with_name(f"{home.name}.{uuid.uuid4().hex}")
    fresh.mkdir(parents=True)
    (fresh / "package.json").write_bytes(manifest)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    result = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode != 0:
        shutil.rmtree(fresh)
        raise RuntimeError(f"npm install of kafkajs failed. exit=`{result.returncode}`\n{result.stderr[-2000:]}")
    (fresh / "installed").touch()
    try:
        fresh.rename(home)
    except OSError:  # the other run finished first
        shutil.rmtree(fresh)
    return home
