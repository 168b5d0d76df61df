"""NVIDIA GPUs: inventory, the sampler child that loads NVML, and the attribution of memory to attempts.

Only `nvml_library` loads NVML, in a child process (`nvml_sampler`). Start at `nvml_devices`.
"""
