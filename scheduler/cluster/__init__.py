"""Runs on several nodes: the links to them, the ports of the loop over these links, and the agent on each node.

`node_sources` reads what `--on` names: hosts, a Slurm allocation (`slurm`), a Ray cluster (`ray_cluster`, and
`ray_bridge`, a process of its own). `link` starts the program that reaches a node and exchanges `frames` with the agent
there; `forms` defines how values are sent, and `mirror` how files are sent. `node` is one node of a run, and `head` has
all of them; `devices` and `engine` are the ports through which the loop uses them. `agent` is the other end of a link.
This package imports no devices, engine or store: `app/cluster` passes them in.
"""
