"""The directory as a store beyond the contract: durability, full and vanished disks, torn files, symlinks, other processes.

Runs: LocalStore on a real file system, with several real processes where one alone proves nothing. A mismatch means that an
acked object can be lost, torn or written somewhere else, or that a broker goes on without its store.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import rmtree

import pytest
import pytest_asyncio

from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import Appender
from headgate.broker.store.local import LocalStore
from headgate.broker.store.local_files import TEMP_AGE_S_MAX, TEMP_DIRECTORY
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.store.os_errors import store_error
from headgate.broker.store.readable import ReadableDirectory
from headgate.broker.store.wrappers import MeteredStore
from tests.support.errors import raises
from tests.support.waiting import begun, until, until_async

ROOT = Path(__file__).resolve().parents[3]


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"))
    yield store
    await store.close()


def appender(store: LocalStore) -> Appender:
    assert store.appender is not None
    return store.appender


def files(root: Path) -> set[str]:
    """All regular files below the root, with the temporary ones."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def is_there(path: str) -> bool:
    return os.path.lexists(path)


def run_child(script: str, *arguments: str) -> str:
    """Run Python code in a separate process; returns its output. Fails with its stderr."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


async def fails(call: object, kind: type[HeadgateError], reason: Reason) -> str:
    with pytest.raises(kind) as caught:
        await call  # type: ignore[misc]
    assert caught.value.reason is reason, caught.value
    return caught.value.message


# -- durability


async def test_an_object_is_on_the_disk_before_it_is_visible_and_its_name_before_it_is_acked(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of system calls: file synced, linked or renamed, directory synced. A crash between any two is harmless."""
    steps: list[str] = []
    real_fsync, real_link, real_rename = os.fsync, os.link, os.rename

    def fsync(fd: int) -> None:
        found = os.fstat(fd)
        steps.append(f"sync {'directory' if stat.S_ISDIR(found.st_mode) else f'file of {found.st_size}'}")
        real_fsync(fd)

    def link(*arguments: object, **options: object) -> None:
        steps.append("link")
        real_link(*arguments, **options)  # type: ignore[arg-type]

    def rename(*arguments: object, **options: object) -> None:
        steps.append("rename")
        real_rename(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "rename", rename)

    assert await store.put_if_absent("a/b/one", b"12345")
    # Two new directories: each one's entry in its parent is synced before anything is put below it.
    assert steps == ["sync directory", "sync directory", "sync file of 5", "link", "sync directory"]
    steps.clear()
    assert not await store.put_if_absent("a/b/one", b"12345")
    assert steps == ["sync directory"], "who is told that a key exists acts on it: it must survive, too"
    steps.clear()
    await store.put("a/b/one", b"123")
    assert steps == ["sync file of 3", "rename", "sync directory"]


async def test_a_failing_disk_leaves_nothing_behind(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("a/old", b"old")
    before = files(Path(store.url))

    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        await fails(store.put("a/old", b"new"), RetryError, Reason.STORE_UNAVAILABLE)
        await fails(store.put_if_absent("a/new", b"new"), RetryError, Reason.STORE_UNAVAILABLE)
    assert files(Path(store.url)) == before
    assert await store.get("a/old") == b"old"
    assert await store.put_if_absent("a/new", b"new"), "the same call later succeeds"


# -- full and unusable disks


async def test_a_full_disk() -> None:
    """A process limit on file size is a full disk that needs no root: write(2) is short first, then fails."""
    output = run_child(
        """
        import asyncio, os, resource, sys, tempfile
        from headgate.broker.runtime.errors import RetryError, Reason
        from headgate.broker.store.local import LocalStore

        async def main(root):
            store = LocalStore(root)
            await store.put("kept", b"kept")
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
            for call in (
                lambda: store.put("kept", bytes(1 << 20)),
                lambda: store.put_if_absent("new", [bytes(60 << 10), bytes(60 << 10)]),
                lambda: asyncio.to_thread(store.appender.create, "wal/1", 1 << 20),
            ):
                try:
                    await call()
                except RetryError as error:
                    assert error.reason is Reason.STORE_FULL, error
                    print(error.message)
                else:
                    raise AssertionError("it fitted")
            assert await store.get("kept") == b"kept"
            assert [row.key for row in await store.list("")] == ["kept"]
            assert os.listdir(root + "/.tmp~") == []
            assert await store.put_if_absent("small", bytes(1 << 10))
            await store.close()

        with tempfile.TemporaryDirectory() as root:
            asyncio.run(main(root + "/store"))
        """
    )
    assert output.count("no space is left") == 3


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (errno.ENOSPC, RetryError, Reason.STORE_FULL),
        (errno.EDQUOT, RetryError, Reason.STORE_FULL),
        (errno.EFBIG, RetryError, Reason.STORE_FULL),
        (errno.EIO, RetryError, Reason.STORE_UNAVAILABLE),
        (errno.ESTALE, RetryError, Reason.STORE_UNAVAILABLE),
        (errno.EMFILE, RetryError, Reason.STORE_UNAVAILABLE),
        (errno.ENOMEM, RetryError, Reason.STORE_UNAVAILABLE),
        (None, RetryError, Reason.STORE_UNAVAILABLE),
        (errno.EROFS, FatalError, Reason.STORE_MISCONFIGURED),
        (errno.EACCES, FatalError, Reason.STORE_MISCONFIGURED),
        (errno.EPERM, FatalError, Reason.STORE_MISCONFIGURED),
        (errno.ENOTDIR, FatalError, Reason.STORE_MISCONFIGURED),
        (errno.EXDEV, FatalError, Reason.STORE_MISCONFIGURED),
    ],
)
def test_what_errors_mean(code: int | None, kind: type[HeadgateError], reason: Reason) -> None:
    error = store_error(OSError() if code is None else OSError(code, os.strerror(code)), "writing an object", "a/b")
    assert type(error) is kind
    assert error.reason is reason
    assert error.message.startswith("writing an object failed") and "path=`a/b`" in error.message


def test_a_directory_that_may_not_be_written_to() -> None:
    """Runs as a user without rights: opening the store fails with a reason, and losing the rights while in use stops the store."""
    output = run_child(
        """
        import asyncio, os, sys, tempfile
        from headgate.broker.runtime.errors import FatalError, Reason
        from headgate.broker.store.local import LocalStore

        def refused(call):
            try:
                call()
            except FatalError as error:
                assert error.reason is Reason.STORE_MISCONFIGURED, error
                print(error.message)
            else:
                raise AssertionError("it was permitted")

        def main(root):
            os.mkdir(root + "/closed", 0o555)
            refused(lambda: LocalStore(root + "/closed"))
            refused(lambda: LocalStore(root + "/closed/store"))
            store = LocalStore(root + "/open")
            os.chmod(root + "/open/.tmp~", 0o555)
            refused(lambda: asyncio.run(store.put("a", b"")))
            os.chmod(root + "/open/.tmp~", 0o755)
            os.chmod(root + "/open", 0o555)
            refused(lambda: asyncio.run(store.put("b/c", b"")))
            refused(lambda: asyncio.run(store.put_if_absent("c", b"")))
            os.chmod(root + "/open", 0o755)

        with tempfile.TemporaryDirectory() as root:
            os.chmod(root, 0o777)
            child = os.fork()
            if child == 0:
                if os.getuid() == 0:
                    os.setuid(65534)
                try:
                    main(root)
                    sys.stdout.flush()
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
        """
    )
    assert output.count("permission is denied") == 5


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FatalError) as caught:
            LocalStore(str(path))
        assert "not a directory" in caught.value.message
        assert str(path) in caught.value.message


async def test_a_missing_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "x" / "y" / "store"))
    assert await store.put_if_absent("a", b"1")
    assert (tmp_path / "x/y/store/a").read_bytes() == b"1"
    await store.close()


async def stopped(store: LocalStore) -> None:
    for call in (
        store.get("a/b"),
        store.get_range("a/b", 0, 1),
        store.put("a/b", b"2"),
        store.put_if_absent("new", b"2"),
        store.list(""),
        store.delete("a/b"),
        asyncio.to_thread(appender(store).exists, "fence"),
        asyncio.to_thread(appender(store).create, "wal/1", 4096),
    ):
        await fails(call, FatalError, Reason.STORE_MISCONFIGURED)


async def test_a_vanished_directory_stops_the_store_and_is_not_made_again(store: LocalStore) -> None:
    await store.put("a/b", b"1")
    rmtree(store.url)
    await stopped(store)
    assert not is_there(store.url)


async def test_another_directory_in_its_place_stops_the_store(store: LocalStore, tmp_path: Path) -> None:
    await store.put("a/b", b"1")
    await store.put("fence", b"1")
    os.rename(store.url, tmp_path / "moved")
    os.mkdir(store.url)
    os.mkdir(os.path.join(store.url, TEMP_DIRECTORY))
    await stopped(store)
    assert files(Path(store.url)) == set()
    assert files(tmp_path / "moved") == {"a/b", "fence"}
    # When the directory is put back, the store works again: nothing was lost.
    os.rmdir(os.path.join(store.url, TEMP_DIRECTORY))
    os.rmdir(store.url)
    os.rename(tmp_path / "moved", store.url)
    assert await store.get("a/b") == b"1"
    assert await asyncio.to_thread(appender(store).exists, "fence")


async def test_a_directory_that_was_emptied_stops_the_store(store: LocalStore) -> None:
    await store.put("a/b", b"1")
    rmtree(os.path.join(store.url, "a"))
    rmtree(os.path.join(store.url, TEMP_DIRECTORY))
    await fails(store.put("a/b", b"2"), FatalError, Reason.STORE_MISCONFIGURED)
    await fails(store.put_if_absent("a/b", b"2"), FatalError, Reason.STORE_MISCONFIGURED)
    assert files(Path(store.url)) == set()


# -- files that are not objects


async def test_torn_files_are_never_shown_and_swept_when_old(store: LocalStore, tmp_path: Path) -> None:
    temp = Path(store.url, TEMP_DIRECTORY)
    (temp / "young").write_bytes(b"half an obj")
    (temp / "old").write_bytes(b"half an obj")
    (temp / "directory").mkdir()
    past = (temp / "young").stat().st_mtime - TEMP_AGE_S_MAX - 5
    os.utime(temp / "old", (past, past))
    assert await store.list("") == []
    another = LocalStore(store.url)
    assert names(temp) == {"young", "directory"}
    assert await another.list("") == []
    await another.close()


async def test_a_temporary_file_that_was_swept_under_a_slow_writer_is_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        real_fsync(fd)
        for path in Path(store.url, TEMP_DIRECTORY).iterdir():
            path.unlink()

    monkeypatch.setattr(os, "fsync", fsync)
    await fails(store.put("a", b"1"), RetryError, Reason.STORE_UNAVAILABLE)
    await fails(store.put_if_absent("a", b"1"), RetryError, Reason.STORE_UNAVAILABLE)
    assert await store.list("") == []


async def test_foreign_files_are_not_listed(store: LocalStore) -> None:
    root = Path(store.url)
    await store.put("a/b", b"1")
    for name in ("lost+found", "a b", "a/ä", "a/x~", "a/" + "x" * 201):
        (root / name).write_bytes(b"")
    (root / "di r").mkdir()
    (root / "di r" / "a").write_bytes(b"")
    os.mkfifo(root / "fifo")
    assert [row.key for row in await store.list("")] == ["a/b"]


async def test_a_fifo_does_not_hang_a_reader(store: LocalStore) -> None:
    os.mkfifo(Path(store.url, "fifo"))
    await fails(store.get("fifo"), InvalidError, Reason.NOT_FOUND)


async def test_symlinks_are_not_followed(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = Path(store.url)
    await store.put("inside/a", b"1")
    (root / "way").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "nowhere").symlink_to(outside / "new")
    (root / "same").symlink_to(root / "inside")
    for call in (
        store.get("way/secret"),
        store.get_range("way/secret", 0, 1),
        store.open_file("way/secret"),
        store.open_file("file"),
        store.put("way/new", b"2"),
        store.put_if_absent("way/new", b"2"),
        store.put_if_absent("way/deep/er", b"2"),
        store.list("way/"),
        store.delete("way/secret"),
        store.get("file"),
        store.get("nowhere"),
        store.get("same/a"),
        asyncio.to_thread(appender(store).create, "way/new", 4096),
    ):
        message = await fails(call, FatalError, Reason.STORE_MISCONFIGURED)
        assert "symlink" in message
    assert [row.key for row in await store.list("")] == ["inside/a"]
    # A link counts as an existing name, and a replacement replaces the link itself.
    assert not await store.put_if_absent("nowhere", b"2")
    await store.put("file", b"2")
    assert await store.get("file") == b"2"
    await store.delete("nowhere")
    assert names(outside) == {"secret"}
    assert (outside / "secret").read_bytes() == b"secret"


async def test_the_root_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / "link"))
    await store.put("a/b", b"1")
    assert (tmp_path / "real/a/b").read_bytes() == b"1"
    (tmp_path / "link").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    await fails(store.put("a/b", b"2"), FatalError, Reason.STORE_MISCONFIGURED)
    await store.close()


# -- directories


async def test_empty_directories_go_and_come(store: LocalStore) -> None:
    root = Path(store.url)
    await store.put("a/b/c/one", b"1")
    await store.put("a/two", b"1")
    await store.delete("a/b/c/one")
    assert names(root) == {TEMP_DIRECTORY, "a"}
    assert names(root / "a") == {"two"}
    await store.delete("a/two")
    assert names(root) == {TEMP_DIRECTORY}
    # An empty directory that a process left when it died between mkdir and link does not block a key.
    (root / "a").mkdir()
    assert await store.put_if_absent("a", b"1")
    await store.delete("a")
    (root / "a").mkdir()
    await store.put("a", b"1")


async def test_a_narrow_listing_reads_narrowly(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1/x", "a/2/x", "a/2/y/z", "a/3/x", "b/1/x"):
        await store.put(name, b"")
    scanned: list[str] = []
    real = os.scandir

    def scandir(fd: int) -> object:
        scanned.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), store.url))
        return real(fd)

    monkeypatch.setattr(os, "scandir", scandir)
    cases: list[tuple[str, str, int, list[str], list[str]]] = [
        ("a/2/", "", 9, ["a/2/x", "a/2/y/z"], ["a/2", "a/2/y"]),
        ("a/2/x", "", 9, ["a/2/x"], ["a/2"]),
        ("a/", "a/2/x", 9, ["a/2/y/z", "a/3/x"], ["a", "a/2", "a/2/y", "a/3"]),
        ("", "a/3/x", 9, ["b/1/x"], [".", "a", "a/3", "b", "b/1"]),
        ("", "", 1, ["a/1/x"], [".", "a", "a/1"]),
        ("c", "", 9, [], ["."]),
    ]
    for prefix, after, limit, keys, directories in cases:
        scanned.clear()
        assert [row.key for row in await store.list(prefix, after, limit)] == keys
        assert scanned == directories


# -- other processes


def test_of_16_processes_one_wins(tmp_path: Path) -> None:
    """In each round 16 processes write one key at the same moment; the winner's bytes must be there, whole."""
    output = run_child(
        """
        import os, sys
        from headgate.broker.store.local_files import LocalFiles

        root, rounds, racers = sys.argv[1], 20, 16
        files = LocalFiles(root)
        for turn in range(rounds):
            gate_out, gate_in = os.pipe()
            children = []
            for racer in range(racers):
                child = os.fork()
                if child == 0:
                    os.close(gate_in)
                    os.read(gate_out, 1)  # until the parent closes its end
                    won = files.put_if_absent(f"deep/{turn}/key", [memoryview(b"%03d" % racer * 1000)])
                    os._exit(10 if won else 20)
                children.append(child)
            os.close(gate_out)
            os.close(gate_in)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert sorted(codes) == [10] + [20] * (racers - 1), codes
            assert files.get(f"deep/{turn}/key") == b"%03d" % codes.index(10) * 1000
        assert os.listdir(root + "/.tmp~") == []
        print("ok")
        """,
        str(tmp_path / "store"),
    )
    assert output == "ok\n"


def write_until_killed(root: Path, acks: int) -> int:
    """Start a writer, SIGKILL it after some acks; returns the last acked number."""
    script = """
        import sys
        from headgate.broker.store.local_files import LocalFiles
        files = LocalFiles(sys.argv[1])
        for number in range(1_000_000):
            files.put("same", [memoryview(b"%07d\\n" % number * 20_000)])
            files.put_if_absent(f"many/{number:07d}", [memoryview(b"%07d\\n" % number * 20_000)])
            print(number, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        acked = [int(child.stdout.readline()) for _ in range(acks)]
        child.kill()
    return acked[-1]


async def test_a_killed_writer_leaves_whole_objects_only(tmp_path: Path) -> None:
    for acks in (1, 4):
        root = tmp_path / f"store-{acks}"
        acked = write_until_killed(root, acks)
        store = LocalStore(str(root))
        rows = await store.list("many/", limit=10_000)
        assert len(rows) > acked, "an acked object is missing"
        for row in [*rows, *await store.list("same")]:
            data = await store.get(row.key)
            assert len(data) == 160_000 and data == data[:8] * 20_000
        await store.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_descriptor_for_another_process(store: LocalStore) -> None:
    await store.put("a/b", b"0123456789")
    metered = MeteredStore(store, ManualClock(0))
    foreign = ReadableDirectory(store.url)
    for files in (store, foreign, metered):
        descriptor = await files.open_file("a/b")
        assert descriptor is not None
        assert os.pread(descriptor, 4, 3) == b"3456"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"not to be written")
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    gc.collect()  # files of other tests may be removed at any moment
    before = open_files()
    for files in (store, foreign, metered):
        for key in ("a", "a/c", "a/b/c"):
            with raises(InvalidError, Reason.NOT_FOUND):
                await files.open_file(key)
        with pytest.raises(InvalidError):
            await files.open_file("a/../b")
    assert open_files() <= before, "no descriptor is left behind"
    for files in (store, foreign):
        earlier = open_files()
        opening = await begun(files.open_file("a/b"))
        until(lambda earlier=earlier: open_files() > earlier)  # a thread has opened it, and the loop does not know yet
        opening.cancel()
        await asyncio.wait((opening,))
        await until_async(lambda earlier=earlier: open_files() <= earlier)
    counted = metered.counts["open_file"]
    assert (counted.calls, counted.errors) == (5, 0), "what is not there is an answer"
    assert await MeteredStore(MemoryStore(MemoryObjects(ManualClock(0))), ManualClock(0)).open_file("a/b") is None


# -- permissions


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("group", [None, 0o000, 0o050, 0o070, 0o2070], ids=["new", "none", "reads", "writes", "setgid"])
async def test_what_is_created_is_for_this_user_alone(tmp_path: Path, umask: int, group: int | None) -> None:
    """Directories, objects, append files and temporary files. The group gets the rights that the store's directory gave it
    before."""
    root = tmp_path / "store"
    if group is not None:
        root.mkdir()
        root.chmod(0o700 | group)
    before = os.umask(umask)
    try:
        store = LocalStore(str(root))
        await store.put("a/b/put", b"x")
        await store.put_if_absent("a/b/once", b"x")
        assert store.appender is not None
        file = store.appender.create("wal/1", 4096)
        temp, descriptor = store._files.create_temp()
        modes = {path: path.stat().st_mode & 0o7777 for path in (root, *root.rglob("*"))}
        os.close(descriptor)
        assert any(path.name == temp for path in modes)
        file.close()
        await store.close()
    finally:
        os.umask(before)
    directory = 0o700 | (group or 0)
    assert {path.name for path in modes} >= {"put", "once", "1"}
    for path, mode in modes.items():
        assert oct(mode) == oct(directory if path.is_dir() else (directory & 0o660) | 0o600), path


@pytest.mark.parametrize("copy", [False, True], ids=["link", "copy"])
async def test_files_that_lie_elsewhere_are_kept(store: LocalStore, tmp_path: Path, copy: bool) -> None:
    """A second try, after an answer that was lost, finds what the first one made. A link keeps the bytes of a link's target."""
    source, link = tmp_path / "source", tmp_path / "link"
    source.write_bytes(b"rows")
    link.symlink_to(source)
    for key, path in (("topics/a", source), ("topics/a", source), ("topics/b", link)):
        assert await store.keep(key, str(path), copy=copy)
    assert os.stat(source).st_nlink == (1 if copy else 3)
    with raises(InvalidError, Reason.NOT_FOUND):
        await store.keep("topics/c", str(tmp_path / "nothing"), copy=copy)
    os.unlink(source)
    for key in ("topics/a", "topics/b"):
        assert await store.get(key) == b"rows"
    assert [found.key for found in await store.list("topics/")] == ["topics/a", "topics/b"]
