"""One run's directory: journal, requests, task counter and the catalog of runs.

All SQL is in `schema`. Start at `run_store`, then `journal`.
"""
