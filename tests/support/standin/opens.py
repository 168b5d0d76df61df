"""A program that opens one device through CUDA's driver (libcuda.so.1) and takes memory of it.

    opens.py ORDINAL [BYTES]

It prints the UUID of the device; a call that fails ends it with 1 and the name of the error.
"""

from __future__ import annotations

import ctypes
import sys
import uuid

CUDA = ctypes.CDLL("libcuda.so.1")


def check(error: int, call: str) -> None:
    """End the program where a call failed."""
    if error:
        name = ctypes.c_char_p()
        CUDA.cuGetErrorName(error, ctypes.byref(name))
        sys.exit(f"{call} failed with {(name.value or b'').decode()}")


def opened(ordinal: int, size: int) -> str:
    """Open a device, take memory of it, and return its UUID."""
    device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    said = (ctypes.c_ubyte * 16)()
    check(CUDA.cuInit(0), "cuInit")
    check(CUDA.cuDeviceGet(ctypes.byref(device), ordinal), f"cuDeviceGet({ordinal})")
    check(CUDA.cuDeviceGetUuid(ctypes.byref(said), device), "cuDeviceGetUuid")
    check(CUDA.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    check(CUDA.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)), f"cuMemAlloc({size})")
    return f"GPU-{uuid.UUID(bytes=bytes(said))}"


if __name__ == "__main__":
    print(opened(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 30), flush=True)
