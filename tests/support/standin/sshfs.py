"""A network file system with an empty root, mounted as fuse.sshfs: `python -m tests.support.standin.sshfs PLACE`.

It is served by this process until that ends, and only where its caller's mount namespace is its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

LOOKUP, GETATTR, STATFS, INIT = 1, 3, 17, 26
HEADER = struct.Struct("IIQQIIII")
SILENT = frozenset({2, 36, 42})
"""Requests without an answer: FORGET, INTERRUPT, BATCH_FORGET."""


def attributes() -> bytes:
    """Return the attributes of the root, which is all there is."""
    now = int(time.time())
    who = (stat.S_IFDIR | 0o755, 2, os.getuid(), os.getgid(), 0, 4096, 0)
    return struct.pack("QII6Q3I7I", 1, 0, 0, 1, 0, 0, now, now, now, 0, 0, 0, *who)


def answer(opcode: int) -> tuple[int, bytes]:
    """Return the error number and the data of an answer."""
    if opcode == INIT:
        return 0, struct.pack("IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
    if opcode == GETATTR:
        return 0, attributes()
    if opcode == STATFS:
        return 0, struct.pack("5Q4I6I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)
    return (errno.ENOENT if opcode == LOOKUP else errno.ENOSYS), b""


def mount(device: int, place: str) -> None:
    """Mount as mount.fuse does."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"far:/home", place.encode(), b"fuse.sshfs", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)


def serve(device: int) -> None:
    """Answer until it is unmounted."""
    while True:
        try:
            asked = os.read(device, 1 << 17)
        except OSError as exc:
            if exc.errno == errno.ENODEV:
                return
            raise
        _, opcode, unique, *_ = HEADER.unpack_from(asked)
        if opcode not in SILENT:
            error, said = answer(opcode)
            os.write(device, struct.pack("IiQ", 16 + len(said), -error, unique) + said)


def main(place: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(device, place)
    print("mounted", flush=True)
    serve(device)


if __name__ == "__main__":
    main(sys.argv[1])
