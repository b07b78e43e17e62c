"""Profiles: names for clusters, in ``~/.config/headgate/profiles.toml`` (below `XDG_CONFIG_HOME` if that is set).

The file has the name of the profile that is in use, and for each profile the addresses of its brokers::

    current = "production"

    [profiles.production]
    cluster = "broker-1.example:9095,broker-2.example:9095"
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from headgate.broker.runtime.errors import InvalidError, Reason


@dataclass(slots=True)
class Profiles:
    """`current` is the name of the profile in use, or "". `clusters`: addresses by name."""

    current: str = ""
    clusters: dict[str, str] = field(default_factory=dict)

    def cluster(self, name: str) -> str:
        """The addresses of a profile. Raises InvalidError for an unknown name."""
        if name not in self.clusters:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise InvalidError(Reason.INVALID_REQUEST, f"profile does not exist. profile=`{name}` known=`{known}`")
        return self.clusters[name]


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "headgate" / "profiles.toml"


def load() -> Profiles:
    """The stored profiles; none without a file. Raises InvalidError if the file cannot be read."""
    file = path()
    try:
        data = tomllib.loads(file.read_text())
        clusters = {name: profile["cluster"] for name, profile in data.get("profiles", {}).items()}
        current = data.get("current", "")
        if not all(isinstance(text, str) for text in (current, *clusters.values())):
            raise TypeError("a value is no text")
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"profiles cannot be read: {error}. path=`{file}`") from error
    return Profiles(current, clusters)


def save(profiles: Profiles) -> None:
    """Store the profiles in one step. Raises OSError."""
    lines = [f"current = {_text(profiles.current)}"] if profiles.current else []
    for name, cluster in sorted(profiles.clusters.items()):
        lines += ["", f"[profiles.{_text(name)}]", f"cluster = {_text(cluster)}"]
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text("\n".join(lines).lstrip("\n") + "\n")
    fresh.replace(file)


def _text(text: str) -> str:
    """A TOML string: every JSON string is one."""
    return json.dumps(text)
