"""Use cases on several nodes: `nodes` connects the nodes of a run to its head, `agent` serves a run on one node."""
