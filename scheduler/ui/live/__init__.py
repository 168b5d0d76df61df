"""The interactive live view: keys, the list of tasks, and the page of a task.

No module of this package writes escape sequences for drawing (`ui/terminal/screen` does) or reads files (`app/live`
does). Start with `run_screen`.
"""
