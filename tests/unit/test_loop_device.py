"""The loop device of the power-loss tests: synced data survives, other data is gone, and a frozen or full device behaves as
such.

A mismatch means that a power loss in the chaos tests loses no data, and proves nothing.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.support.loop_device import LoopDevice, damage_of, devices_of

pytestmark = pytest.mark.needs_mount
SIZE_BYTES = 1 << 25


def write(path: Path, data: bytes, *, sync: bool) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(file, data)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def test_a_power_loss_takes_what_was_not_synced(tmp_path: Path) -> None:
    with LoopDevice(tmp_path, SIZE_BYTES) as device:
        write(device.path / "synced", b"x" * 5_000, sync=True)
        write(device.path / "cached", b"y" * 5_000, sync=False)
        device.lose_power()
        with pytest.raises(OSError) as refusal:
            write(device.path / "late", b"z", sync=True)
        assert refusal.value.errno == errno.EIO
        device.restore_power()
        assert (device.path / "synced").read_bytes() == b"x" * 5_000
        assert not (device.path / "cached").exists() and not (device.path / "late").exists()


def test_a_frozen_file_system_makes_writers_wait(tmp_path: Path) -> None:
    with LoopDevice(tmp_path, SIZE_BYTES) as device:
        device.freeze()
        writer = threading.Thread(target=write, args=(device.path / "file", b"x"), kwargs={"sync": True})
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        device.thaw()
        writer.join(30)
        assert (device.path / "file").read_bytes() == b"x"


def test_a_full_file_system_has_no_room(tmp_path: Path) -> None:
    with LoopDevice(tmp_path, SIZE_BYTES) as device:
        device.fill()
        with pytest.raises(OSError) as refusal:
            write(device.path / "file", b"x" * 100_000, sync=True)
        assert refusal.value.errno == errno.ENOSPC
        device.empty()
        write(device.path / "file", b"x" * 100_000, sync=True)


def test_an_image_never_has_two_loop_devices(tmp_path: Path) -> None:
    with LoopDevice(tmp_path, SIZE_BYTES) as device:
        for _ in range(3):
            assert len(devices_of(device.image)) == 1
            device.lose_power()
            device.restore_power()
    assert devices_of(device.image) == [] and not device.image.exists()


def test_a_damaged_file_system_is_no_loss_of_a_broker(tmp_path: Path) -> None:
    with LoopDevice(tmp_path / "one", SIZE_BYTES) as device:
        write(device.path / "file", b"x" * 100_000, sync=True)
        device.keeps = True
    assert damage_of(device.image) is None
    with device.image.open("r+b") as image:
        image.seek(1 << 16)
        image.write(bytes(1 << 20))
    assert damage_of(device.image) is not None


def test_an_image_is_kept_where_a_test_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LoopDevice(tmp_path, SIZE_BYTES) as device:
        raise ZeroDivisionError
    assert device.image.exists() and devices_of(device.image) == []
