"""A program that makes calls of Python functions on several machines, and what it prints if all is well."""

from __future__ import annotations

PROGRAM = """\
import os, signal, socket, subprocess, sys, time
import scheduler
class Odd(Exception):
    pass
def where(x):
    if x == 3:
        raise Odd("3 is odd")
    if x == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return socket.gethostname() in ("n1", "n2", "n3")
def until(made):
    end = time.monotonic() + 30
    while not made() and time.monotonic() < end:
        time.sleep(0.02)
with scheduler.Executor(2, on=sys.argv[1], gpus=0) as ex:
    for call in [ex.submit(where, x) for x in range(5)]:
        print(repr(call.exception() or call.result())[:36])
    running, waiting = [ex.submit(time.sleep, 60 + i) for i in range(2)], ex.submit(where, 0)
    until(lambda: all(call.running() for call in running))
    print(waiting.cancel(), *[call.cancel() for call in running])
    for call in running:
        subprocess.run([sys.executable, "-m", "scheduler", "cancel", str(call.task_id)], stdout=2)
    print(*[call.exception().state for call in running])
    last = ex.submit(where, 1)
print(last.result())
"""
SAID = """\
True
True
True
Odd('3 is odd')
CallFailed('where x-4 (task 4) ended
True False False
cancelled cancelled
True
"""
