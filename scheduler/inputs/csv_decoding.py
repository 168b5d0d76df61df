"""The bytes of a CSV file, decoded into lines and hashed while they are read; errors name the row of a fault."""

from __future__ import annotations

import codecs
import csv
import io
import shlex
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, BinaryIO

from scheduler.errors import InputError

_CHUNK = 1 << 20


class NotText(ValueError):
    """Bytes that are not UTF-8 text: they have the encoding that the error names, or contain a NUL byte if it names
    none.
    """


class HashedBytes(io.RawIOBase):
    """A file of which at most `left` bytes are read, and hashed while they are read. If they are not UTF-8 text,
    reading raises `NotText`, unless `any_bytes` is true.
    """

    def __init__(self, file: io.FileIO, left: int | None = None, any_bytes: bool = False) -> None:
        self._file = file
        self._left = left
        self._any = any_bytes
        self.digest = blake2b(digest_size=32)
        self.offset = 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        wanted = len(buffer) if self._left is None else min(len(buffer), self._left - self.offset)
        data = self._file.read(wanted) or b""
        encoding = "" if self.offset else _encoding(data[:4])
        if not self._any and (encoding or b"\0" in data):
            raise NotText(encoding)
        buffer[: len(data)] = data
        self.digest.update(data)
        self.offset += len(data)
        return len(data)


def text_of(source: HashedBytes, errors: str = "strict") -> io.TextIOWrapper:
    """Return a text file that decodes the bytes of `source`."""
    return io.TextIOWrapper(io.BufferedReader(source, _CHUNK), encoding="utf-8-sig", errors=errors, newline="")


_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NULS = {(1, 3): "UTF-16LE", (0, 2): "UTF-16BE", (1, 2, 3): "UTF-32LE", (0, 1, 2): "UTF-32BE"}


def _encoding(first: bytes) -> str:
    """Return the encoding that the first four bytes of a file indicate; empty if they indicate none."""
    for bom, name in _BOMS.items():
        if first.startswith(bom):
            return name
    return _NULS.get(tuple(index for index, byte in enumerate(first) if not byte), "")


def iconv(encoding: str, path: str) -> str:
    """Return the command that converts a file to UTF-8."""
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(path)} > utf8.csv"


def clean(path: str, lines: Iterable[str], number: int) -> Iterator[str]:
    """Yield lines that were decoded with surrogateescape; raise InputError for a line that is not text.

    In the file, the first of these lines has the number `number` + 1.
    """
    for row, line in enumerate(lines, number + 1):
        if "\0" in line:
            message = f"character {line.index(chr(0)) + 1} is a NUL byte, which a command cannot contain: remove it"
            raise InputError(path, message, row)
        if not line.isascii():
            _refuse_bytes(path, line, row)
        yield line


def _refuse_bytes(path: str, line: str, row: int) -> None:
    try:
        line.encode()
    except UnicodeEncodeError as exc:
        found = f"byte 0x{ord(line[exc.start]) - 0xDC00:02X} at character {exc.start + 1} is not UTF-8"
        raise InputError(path, f"{found}: {iconv('LATIN1', path)}", row) from None


def quote_fault(fault: str, row: int, until: int) -> str:
    """Return a sentence about an error that the csv module raised in the lines from `row` to `until`."""
    if "unexpected end" in fault:
        return "a quote opened in this row is never closed"
    if "field limit" in fault:
        limit = csv.field_size_limit() >> 10
        return (
            f"a cell is longer than {limit}KiB, more than a program accepts: is a quote opened here and never closed?"
        )
    cure = "put the whole cell in quotes and double the quotes inside it"
    if until > row:
        return f"a quote opened in this row is closed only in line {until}, with text after it: {cure}"
    return f"text follows a closing quote: {cure}"


def digest_of(file: BinaryIO, length: int) -> tuple[Any, bytes]:
    """Return the digest of the first `length` bytes of a file, and the last of these bytes."""
    digest = blake2b(digest_size=32)
    data = b""
    while length > 0 and (chunk := file.read(min(_CHUNK, length))):
        digest.update(chunk)
        length -= len(chunk)
        data = chunk
    return digest, data[-1:]


def behind(ending: bytes, tail: bytes) -> bytes | None:
    """Return the part of `tail` that comes after the line end of the accepted part; None if its last line was
    lengthened.

    `ending` is the last byte of the accepted part.
    """
    if ending == b"\r":
        return tail.removeprefix(b"\n")
    if ending == b"\n" or not tail:
        return tail
    if tail[:1] not in b"\r\n":
        return None
    return tail.removeprefix(b"\r").removeprefix(b"\n")


def ended(tail: bytes) -> bytes:
    """Return the lines of `tail` that have a line end."""
    return tail[: max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1]
