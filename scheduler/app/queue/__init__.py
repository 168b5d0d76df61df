"""Standing queues: tasks that are submitted from any terminal and join one run of kind `queue`.

A queue is an ordinary run; this package finds or starts it and sends it submissions. The files next to the run are in
`store/queue`. Begin with `submit`.
"""
