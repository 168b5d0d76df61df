"""The checks of this machine for `scheduler doctor`: one table, and the sentences of each check beside what it finds.

How findings look on the screen is decided in `ui/verbs/doctor`. Start at `checks`, the table.
"""
