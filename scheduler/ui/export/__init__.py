"""Formats for programs: the JSON of every verb, result tables, Prometheus.

Start at `json_schemas`, the one table of all JSON output.
"""
