"""Runs on several nodes: the links to them, the ports of the loop over these links, and the agent on each node.

`link` starts the program that reaches a node (ssh) and exchanges `frames` with the agent there; `forms` says how values
travel, `mirror` how files do. `head` joins the nodes of a run; `devices` and `engine` are its ports for the loop.
`agent` is the other end. This package joins no devices, engine or store of its own: `app/cluster` does.
"""
