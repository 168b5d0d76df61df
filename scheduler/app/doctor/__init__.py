"""The checks of this machine for `scheduler doctor`: one table, and for each check its facts and its sentences.

The layout of the page is decided in `ui/verbs/doctor`. Start at `checks`, the table.
"""
