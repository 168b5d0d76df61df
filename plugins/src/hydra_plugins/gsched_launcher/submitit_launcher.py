"""`hydra/launcher=submitit_gsched`: hydra-submitit-launcher, if it is installed, with the executor `gsched`."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

try:
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:
    pass
else:

    @dataclass
    class GschedSubmititConf(BaseQueueConf):
        """The options of a cluster's launcher, and the options that only this machine has."""

        _target_: str = "hydra_plugins.gsched_launcher.submitit_launcher.GschedSubmititLauncher"
        memory: str | None = None
        priority: int = 0
        queue: str = "queue"
        max_num_timeout: int = 0

    ConfigStore.instance().store(
        group="hydra/launcher", name="submitit_gsched", node=GschedSubmititConf, provider="gsched_launcher"
    )

    class GschedSubmititLauncher(BaseSubmititLauncher):
        """The launcher that pickles the sweep's function for each job."""

        _EXECUTOR = "gsched"
