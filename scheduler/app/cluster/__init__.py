"""Use cases on several nodes: `nodes` joins those of a run at its head, `agent` serves a run on one of them."""
