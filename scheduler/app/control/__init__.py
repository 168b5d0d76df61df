"""Changing a run or the machine from outside: targets, requests, retention, device reservations.

Whether a request is granted is decided in `core/control`. Start at `run_requests`.
"""
