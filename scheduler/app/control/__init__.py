"""Changing a run or the machine from outside: targets, requests, retention, device reservations.

The decision whether a request is granted lies in `core/control`. Start at `run_requests`.
"""
