"""The files of a standing queue beside its run: the link to that run, the lock for its start, its tasks' shells.

The files of the run itself are in `store/run`. Start at `queue_link`.
"""
