"""The output of single verbs, as text for people and as data for programs.

A module is named like its verb; `eta` and `answers` serve several. Nothing here reads a file. Start at `status`.
"""
