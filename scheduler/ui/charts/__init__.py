"""Charts as SVG and as text: simulated runs, timelines of reports, experiments.

Start at `svg`, which all drawings are made of.
"""
