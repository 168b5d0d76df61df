"""One run's directory: journal, requests, counter, catalog of runs.

All SQL is in `schema`. Start at `run_store`, then `journal`.
"""
