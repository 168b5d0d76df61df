"""NVIDIA MPS: private daemons, clients, compute modes.

Start at `sharing`, then `daemon`.
"""
