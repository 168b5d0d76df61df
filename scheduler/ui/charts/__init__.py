"""Charts as SVG and as text: of simulated runs, and timelines of reports.

Start at `svg`, which makes all drawings.
"""
