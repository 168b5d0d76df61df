"""Charts as SVG and as text: simulated runs and timelines of reports.

Start at `svg`, which all drawings are made of.
"""
