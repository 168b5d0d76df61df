"""Plug-ins of other tools that run their jobs by gpu-batch-scheduler. Each module needs only the tool that it is for.

Start at `submitit_executor`; Hydra finds its launcher in the package `hydra_plugins.gsched_launcher`.
"""

__version__ = "0.1.0"
