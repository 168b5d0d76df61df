"""Placement: the capacity of devices, what tasks request, and one pass over the queue.

A pass changes only its own working copy. Start at `scheduling_pass`, then `fit`.
"""
