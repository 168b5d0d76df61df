"""The host's RAM and cores as a device, control groups, and the sampler child that reads /proc.

Start at `host_memory`.
"""
