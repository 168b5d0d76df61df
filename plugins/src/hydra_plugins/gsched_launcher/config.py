"""The options of the launchers, under `hydra.launcher`."""

# Hydra executes this module outside of sys.modules, where data classes cannot resolve annotations that are texts.

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore


@dataclass
class GschedLauncherConf:
    """The options of the launcher; an option that is left empty is learned, or has the default of every task."""

    _target_: str = "hydra_plugins.gsched_launcher.launcher.GschedLauncher"
    queue: str = "queue"
    name: str = "${hydra.job.name}"
    gpus: int | None = None
    memory: str | None = None
    host_memory: str | None = None
    cpus: float | None = None
    priority: int | None = None
    timeout: str | None = None
    grace: str | None = None
    stop_signal: str | None = None
    retries: int | None = None
    retry_on: str | None = None
    resumable: bool | None = None
    preempt: bool | None = None
    device: str | None = None
    prefer: str | None = None
    exclusive: bool | None = None
    begin: str | None = None
    env: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/launcher", name="gsched", node=GschedLauncherConf, provider="gsched_launcher")
