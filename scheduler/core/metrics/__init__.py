"""The metrics of tasks: numbers that a task reports while it runs, such as a loss after every epoch.

`readings` finds them in output and in result files, `curve` and `record` keep them bounded, `goal` says whether a low
or a high value is the better one. The host's sampler child runs these modules from a copy in the run's directory, so
they use the standard library only. Start with `record`.
"""
