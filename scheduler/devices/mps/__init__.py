"""NVIDIA MPS: private daemons, their clients, and compute modes of GPUs.

Start at `sharing`, then `daemon`.
"""
