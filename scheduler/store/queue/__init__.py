"""The files of a standing queue beside its run: which run it is, its starting lock, the shells of its tasks.

The files of the run itself are in `store/run`. Start at `queue_link`.
"""
