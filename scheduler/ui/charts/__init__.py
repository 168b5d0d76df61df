"""Charts as SVG and as text: simulated runs and timelines of reports.

Start at `svg`, from which all drawings are made.
"""
