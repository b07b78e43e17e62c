"""The test's side of member processes, and the checker of their events.

`Group` starts members, keeps all their events, and checks two promises. Every record is processed. A record that was committed
is never processed again by a later owner of the partition.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support import kafka_server
from tests.support.npm import SOURCE, install

ROOT = Path(__file__).resolve().parents[3]
PYTHON_CLIENTS = ("confluent", "aiokafka", "kafka_python")
JAVA_MEMBER = Path(__file__).parent / "Member.java"
WAIT_S = 90.0
"""The longest wait for anything. It only ends a hang with a message."""


def java_command(settings: Mapping[str, Any], place: Path) -> list[str]:
    """The command of a member of the Java client. It has the client's default assignors, and no instance id. Its class is compiled
    into a directory, once."""
    assert settings["instance"] is None
    jars = f"{kafka_server.jars()}/*"
    if not (place / "Member.class").exists():
        subprocess.run(["javac", "-cp", jars, "-d", str(place), str(JAVA_MEMBER)], check=True, timeout=WAIT_S)
    given = [str(settings[name]) for name in ("bootstrap", "group", "topic", "session_ms", "assignor")]
    return ["java", *kafka_server.SMALL_JVM, "-XX:TieredStopAtLevel=1", "-cp", f"{place}{os.pathsep}{jars}", "Member", *given]


class MemberProcess:
    """One member. `events` has its events in the order of their output."""

    def __init__(self, client: str, log_path: Path, **settings: Any) -> None:
        self.client = client
        self.events: list[dict[str, Any]] = []
        self.killed = False
        self._log_path = log_path
        environment = dict(os.environ)
        if client == "kafkajs":
            command = ["node", str(SOURCE / "member.js"), json.dumps(settings)]
            environment["KAFKAJS_HOME"] = str(install())
        elif client == "java":
            command = java_command(settings, log_path.parent)
        else:
            command = [sys.executable, "-m", f"tests.support.group_members.{client}_member", json.dumps(settings)]
        self._log = log_path.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT, env=environment, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A killed member may leave half a line.
            if line.endswith("\n"):
                self.events.append(json.loads(line))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in list(self.events) if one["event"] == event]

    @property
    def records(self) -> int:
        return len(self.of("record"))

    @property
    def owns(self) -> set[int]:
        """The partitions that it owns now, by its events. Eager clients report all partitions that they lose."""
        owned: set[int] = set()
        for one in list(self.events):
            if one["event"] == "assigned":
                owned = owned | set(one["partitions"]) if self.client != "kafkajs" else set(one["partitions"])
            elif one["event"] == "revoked":
                owned -= set(one["partitions"])
        return owned

    def kill(self) -> None:
        """Kill the member; it does not leave the group."""
        self.killed = True
        self.process.kill()
        self.close()

    def stop(self) -> None:
        """Let the member leave the group cleanly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"member does not stop. client=`{self.client}`\n{self.output()}") from None
        self.close()
        assert self.process.returncode == 0, f"member failed. client=`{self.client}`\n{self.output()}"

    def close(self) -> None:
        """Read the last events of a member that has ended."""
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None and not stream.closed:
                stream.close()

    def output(self) -> str:
        return self._log_path.read_text(errors="replace")[-5000:]


class Group:
    """Members of one group, and the checker of their events."""

    def __init__(self, bootstrap: str, group: str, topic: str, home: Path, session_ms: int = 6_000) -> None:
        self.bootstrap, self.name, self.topic, self.session_ms = bootstrap, group, topic, session_ms
        self.members: list[MemberProcess] = []
        self._home = home

    def start(self, client: str, *, assignor: str = "range", instance: str | None = None) -> MemberProcess:
        member = MemberProcess(
            client,
            self._home / f"{self.name}-{len(self.members)}-{client}.log",
            bootstrap=self.bootstrap,
            group=self.name,
            topic=self.topic,
            instance=instance,
            assignor=assignor,
            session_ms=self.session_ms,
        )
        self.members.append(member)
        return member

    @property
    def running(self) -> list[MemberProcess]:
        return [member for member in self.members if member.process.poll() is None]

    def wait(self, what: str, question: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Wait until `question` is true. Fails with every member's state on a timeout, or if a member ends by itself."""
        deadline = time.monotonic() + timeout_s
        while not question():
            for member in self.members:
                code = member.process.poll()
                assert code in (None, 0) or member.killed, f"member ended. client=`{member.client}`\n{member.output()}"
            if time.monotonic() > deadline:
                states = [(m.client, sorted(m.owns), m.records, m.events[-3:]) for m in self.members]
                raise AssertionError(f"does not happen: {what}. members=`{states}`\n{[m.output() for m in self.running]}")
            time.sleep(0.02)

    def wait_shared(self, partitions: int) -> None:
        """Wait until the running members own every partition, each of them at least one."""
        self.wait(
            "every member owns a part",
            lambda: (
                sorted(p for m in self.running for p in m.owns) == list(range(partitions)) and all(m.owns for m in self.running)
            ),
        )

    def processed(self) -> dict[int, set[int]]:
        """The offsets that any member processed, by partition."""
        found: dict[int, set[int]] = defaultdict(set)
        for member in self.members:
            for one in member.of("record"):
                found[one["partition"]].add(one["offset"])
        return found

    def wait_processed(self, records: dict[int, int]) -> None:
        """Wait until every record below these end offsets was processed."""
        self.wait(
            f"everything is processed: {records}",
            lambda: all(len(self.processed()[partition]) >= end for partition, end in records.items()),
        )

    def stop_all(self) -> None:
        for member in self.running:
            member.stop()

    def check(self) -> None:
        """No member processed a record that was committed before it got the partition; acked commits of a partition never go
        back."""
        acks: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for member in self.members:
            for one in member.of("committed"):
                for partition, offset in one["offsets"].items():
                    acks[int(partition)].append((one["at"], offset))
        for partition, rows in acks.items():
            rows.sort()
            offsets = [offset for _, offset in rows]
            assert offsets == sorted(offsets), f"a commit went back. partition=`{partition}` commits=`{rows}`"
        for member in self.members:
            assigned_at = 0.0
            for one in member.events:
                if one["event"] == "assigned":
                    assigned_at = one["at"]
                elif one["event"] == "record":
                    partition, offset = one["partition"], one["offset"]
                    before = max((acked for at, acked in acks[partition] if at < assigned_at), default=0)
                    assert offset >= before, (
                        f"a committed record came again. client=`{member.client}` partition=`{partition}` offset=`{offset}` "
                        f"committed=`{before}`"
                    )
