"""Runs on several nodes: the links to them, the ports of the loop over these links, and the agent on each node.

`node_sources` reads what `--on` names: hosts, a Slurm allocation (`slurm`), a Ray cluster (`ray_cluster`, and
`ray_bridge`, a process of its own). `link` starts the program that reaches a node and exchanges `frames` with the agent
there; `forms` says how values travel, `mirror` how files do. `node` is one of a run, `head` joins them; `devices` and
`engine` are its ports for the loop. `agent` is the other end. This package joins no devices, engine or store of its
own: `app/cluster` does.
"""
