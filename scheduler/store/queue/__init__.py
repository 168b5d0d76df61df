"""The files of a standing queue outside of its run: the link to the run, the lock for its start, and shells.

The files of the run itself are in `store/run`. Start at `queue_link`.
"""
