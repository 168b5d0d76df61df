"""The metrics of `status --prometheus`: each has its own figure of the facts."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from scheduler.ui.export import prometheus

LEASE = {"user": "ann", "run": 1, "task": 7, "reserved": {"GPU 0": 11}, "used": {"GPU 0": 12}}
RUN = {
    "number": 1, "name": "a", "file": "jobs.csv", "alive": True, "over": False, "states": {"waiting": 13, "failed": 14},
    "accepted": 15.5, "expected": {"end": {"early": 16.0, "likely": 17.0, "late": 18.0}},
}  # fmt: skip
FACTS = {
    "host": {"total": 1, "available": 2},
    "gpus": [{"device": "GPU 0", "total": 3, "free": 4, "reserved": 5, "tasks": 6, "drained": "it is lost"}],
    "leases": [LEASE],
    "waiting": [{"user": "ben", "run": 2, "task": 8, "waited": 9.5}],
    "runs": [RUN, {**RUN, "number": 2, "alive": False, "over": True, "expected": None}],
}


def test_every_metric_has_the_figure_of_its_name() -> None:
    families = text_string_to_metric_families(prometheus.text(FACTS))
    values = {family.name.removeprefix("scheduler_"): [s.value for s in family.samples] for family in families}
    assert values == {
        "host_memory_total_bytes": [1],
        "host_memory_available_bytes": [2],
        "device_memory_total_bytes": [3],
        "device_memory_free_bytes": [4],
        "device_reserved_bytes": [5],
        "device_tasks": [6],
        "device_drained": [1],
        "lease_reserved_bytes": [11],
        "lease_used_bytes": [12],
        "waiting_seconds": [9.5],
        "run_tasks": [13, 14, 13, 14],
        "run_alive": [1, 0],
        "run_over": [0, 1],
        "run_accepted_timestamp_seconds": [15.5, 15.5],
        "run_expected_end_timestamp_seconds": [16, 17, 18],
    }
