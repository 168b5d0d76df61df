"""The command line: one file for each verb, named like it.

A verb parses its flags, calls `app`, and prints through `ui`. Start at `main`.
"""
