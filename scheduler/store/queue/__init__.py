"""The files of a standing queue beside its run: which run it is, the lock under which it is started, the shells of
its tasks. Begin with `queue_link`; what the run itself keeps is in `store/run`.
"""
