"""The views of a run on a terminal: plain lines, the live view, `exec`, the opening and the closing lines.

A view receives events; it reads no journal and no device. Start at `plain_view`.
"""
