"""A network file system with files: `python -m tests.support.standin.far_disk PLACE FOLDER` mounts FOLDER on PLACE.

It is served by this process until that ends. A line on its standard input stops the process (until SIGCONT), so that
the mount is dead as that of a server without power is: each look at it waits. No request has been taken then: a caller
can be killed, as on NFS.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import sys
from pathlib import Path

from tests.support.standin.sshfs import HEADER, SILENT, answer, mount

NO_FLUSH = 32
"""The kernel does not ask this disk when a file is closed: a process that ends would wait for that without a limit."""
LOOKUP, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, RELEASE_FOLDER, CREATE = 1, 3, 4, 14, 15, 16, 18, 29, 35
STDIN = 0
ROOT_NODE = 1
DIRECT = 1
"""A flag of an answer: the kernel keeps nothing of this file, so it always asks."""
SIZE_IS_SET = 8
ENTRY = struct.Struct("QQQQII")
ATTRIBUTES = struct.Struct("6Q10I")


class FarDisk:
    """The files below a folder, by the numbers that the kernel is told."""

    def __init__(self, folder: Path) -> None:
        self._paths = {ROOT_NODE: folder}
        self._nodes = {folder: ROOT_NODE}

    def answer(self, opcode: int, node: int, said: bytes) -> tuple[int, bytes]:
        """Return the error number and the data of an answer."""
        try:
            return 0, self._answer(opcode, self._paths.get(node, Path("/nowhere")), said)
        except OSError as exc:
            return exc.errno or errno.EIO, b""
        except NotImplementedError:
            return answer(opcode)

    def _answer(self, opcode: int, path: Path, said: bytes) -> bytes:
        if opcode == LOOKUP:
            return self._entry(path / os.fsdecode(said.rstrip(b"\0")))
        if opcode in (GETATTR, SETATTR):
            if opcode == SETATTR and struct.unpack_from("I", said)[0] & SIZE_IS_SET:
                os.truncate(path, struct.unpack_from("IIQQ", said)[3])
            return struct.pack("QII", 0, 0, 0) + attributes(path)
        if opcode == OPEN:
            return struct.pack("QII", 0, DIRECT | NO_FLUSH, 0)
        if opcode == CREATE:
            new = path / os.fsdecode(said[16:].rstrip(b"\0"))
            new.touch()
            return self._entry(new) + struct.pack("QII", 0, DIRECT, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("QQI", said)
            return path.read_bytes()[offset : offset + size]
        if opcode == WRITE:
            return self._write(path, said)
        if opcode in (RELEASE, RELEASE_FOLDER):
            return b""
        raise NotImplementedError

    def _entry(self, path: Path) -> bytes:
        found = attributes(path)
        node = self._nodes.setdefault(path, len(self._nodes) + 1)
        self._paths[node] = path
        return ENTRY.pack(node, 0, 0, 0, 0, 0) + found

    def _write(self, path: Path, said: bytes) -> bytes:
        _, offset, size = struct.unpack_from("QQI", said)
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(said[40 : 40 + size])
        return struct.pack("II", size, 0)


def attributes(path: Path) -> bytes:
    """Return the attributes of a file as the kernel is told them."""
    found = path.lstat()
    times = [int(found.st_atime), int(found.st_mtime), int(found.st_ctime)]
    nanoseconds = [found.st_atime_ns % 10**9, found.st_mtime_ns % 10**9, found.st_ctime_ns % 10**9]
    who = [found.st_mode, found.st_nlink, found.st_uid, found.st_gid]
    return ATTRIBUTES.pack(found.st_ino, found.st_size, found.st_blocks, *times, *nanoseconds, *who, 0, 4096, 0)


def main(place: str, folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(device, place)
    print("mounted", flush=True)
    disk = FarDisk(Path(folder))
    while True:
        if STDIN in select.select([device, STDIN], [], [])[0]:
            os.read(STDIN, 64)
            os.kill(os.getpid(), signal.SIGSTOP)
            continue
        try:
            asked = os.read(device, 1 << 18)
        except OSError as exc:
            if exc.errno == errno.ENODEV:
                return
            raise
        _, opcode, unique, node, *_ = HEADER.unpack_from(asked)
        if opcode not in SILENT:
            error, said = disk.answer(opcode, node, asked[HEADER.size :])
            os.write(device, struct.pack("IiQ", 16 + len(said), -error, unique) + said)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
