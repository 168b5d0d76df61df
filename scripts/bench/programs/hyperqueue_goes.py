"""Runs a file of commands by HyperQueue's Python package: `python hyperqueue_goes.py CORES < commands`.

Written to standard output, by the monotonic clock: when the commands were handed over (server and worker were up by
then) and when a slot was free again after the last of them had started. It is asked for no files of output.
"""

import os
import sys
import tempfile
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

last = tempfile.mktemp(prefix="hyperqueue-last-")
commands = sys.stdin.read().splitlines()
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[1])))
    client = cluster.client()
    began = time.monotonic()
    job = Job(max_fails=None)
    for command in [*commands, "touch " + last]:
        job.program(["sh", "-c", command], stdout=None, stderr=None)
    submitted = client.submit(job)
    while not os.path.exists(last):  # its own wait looks once a second
        time.sleep(0.001)
    ended = time.monotonic()
    client.wait_for_jobs([submitted])
os.unlink(last)
print("\n", began, ended)
