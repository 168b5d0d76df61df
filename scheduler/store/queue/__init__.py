"""The files of a standing queue beside those of its run: the link to the run, the start lock, submitted shells.

The files of the run itself are in `store/run`. Start at `queue_link`.
"""
