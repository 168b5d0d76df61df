"""Formats for programs: result tables and lists as CSV, JSON and Markdown, metrics for Prometheus.

The shape of each verb's JSON is in tests/docs/json_shapes, which the reference pages and the tests read.
"""
