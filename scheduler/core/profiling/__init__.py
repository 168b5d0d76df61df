"""Profiles: what is known of the memory, time and load of task classes, and the estimates made from it.

Profiles are stored by `store/profiles`. Start at `estimator`, then `profile_index`.
"""
