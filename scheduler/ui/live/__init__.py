"""The interactive live view: keys, the list of tasks, a task's page.

Nothing here knows a terminal's escape sequences for drawing (`ui/terminal/screen`) or reads files (`app/live`). Start
with `run_screen`.
"""
