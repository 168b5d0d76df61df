"""A stand-in for nvidia-smi: `-i UUID -c MODE` sets the compute mode of a stand-in GPU, without `-c` it is told;
`-pl WATTS` sets its power limit, 300 W at first, and `--query-gpu=power.limit,…` tells it.

Where a file `deaf` lies beside STANDIN_GPUS it says that it did, and does nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys

MODES = {"DEFAULT": 0, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}
WORDS = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}


def main(argv: list[str]) -> int:
    path = os.environ["STANDIN_GPUS"]
    folder = os.path.dirname(path)
    code = ctypes.CDLL(os.path.join(folder, "libstandin.so"))
    code.standin_open.restype = ctypes.c_void_p
    code.standin_uuid.restype = ctypes.c_char_p
    code.standin_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64)
    gpus = ctypes.c_void_p(code.standin_open(path.encode()))
    uuid = argv[argv.index("-i") + 1].encode()
    device = [code.standin_uuid(gpus, number) for number in range(code.standin_count(gpus))].index(uuid)
    remembered = os.path.join(folder, f"mode{device}")
    if "-c" in argv:
        mode = MODES[argv[argv.index("-c") + 1]]
        if not os.path.exists(os.path.join(folder, "deaf")):
            code.standin_set(gpus, device, b"compute_mode", mode)
            with open(remembered, "w") as file:
                file.write(str(mode))
        print(f"Set compute mode to {argv[argv.index('-c') + 1]} for GPU {device}.")
        return 0
    limit = os.path.join(folder, f"power{device}")
    if "-pl" in argv:
        if not os.path.exists(os.path.join(folder, "deaf")):
            with open(limit, "w") as file:
                file.write(argv[argv.index("-pl") + 1])
        print("All done.")
        return 0
    if any("power.limit" in word for word in argv):
        now = "300"
        if os.path.exists(limit):
            with open(limit) as file:
                now = file.read()
        print(f"{now}, 100.00, 350.00")
        return 0
    mode = 0
    if os.path.exists(remembered):
        with open(remembered) as file:
            mode = int(file.read())
    print(WORDS[mode])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
