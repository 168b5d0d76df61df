"""NVIDIA GPUs: inventory, the sampler child that loads NVML, and the attribution of memory to attempts.

Only `nvml_sampler` loads NVML, in a child process. Start at `nvml_devices`.
"""
