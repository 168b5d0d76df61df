"""The output of single verbs, as text for people and as data for programs.

A module has the name of its verb; `eta` and `answers` serve several verbs. No module of this package reads a file.
Start at `status`.
"""
