"""The addresses of runs at Weights & Biases and MLflow, which tasks print or which follow from their variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MOST_LINKS = 4
_COLOURS = r"\x1b\[[0-9;?]*[A-Za-z]"
_RUNS = (
    r"https?://[A-Za-z0-9.:-]{1,100}/(?:(?:[\w.~%-]{1,100}/){2}runs/[\w-]{1,64}"
    r"|(?:[\w.~%-]{1,40}/){0,3}#/experiments/\d{1,20}/runs/[0-9a-f]{32})"
)
"""Addresses of a run at Weights & Biases and at MLflow, as both print them."""
_SERVER = r"(https?://)(?:[^/?#@]*@)*([A-Za-z0-9.:-]+(?:/[\w.~%-]+)*)/?(?:[?#]|$)"
VARIABLES = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
"""The variables that name a run; without any of them there is no address."""
_NOT_SENT = frozenset({"offline", "disabled", "dryrun"})
"""Values of WANDB_MODE with which a run has no page on a server."""
_PUBLIC = "https://wandb.ai"
_API = "https://api.wandb.ai"


def printed(text: str) -> list[str]:
    """Return the addresses of runs that a task has printed, each once; if there are more than MOST_LINKS, the last
    ones.
    """
    if "://" not in text:
        return []
    return [*dict.fromkeys(re.findall(_RUNS, re.sub(_COLOURS, "", text), re.ASCII))][-MOST_LINKS:]


def identified(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of runs that the variables of a task determine, without passwords for their servers."""
    return [found for found in (_wandb(environ), _mlflow(environ)) if re.fullmatch(_RUNS, found, re.ASCII)]


def addresses(text: str, named: Iterable[str]) -> list[str]:
    """Return the addresses that a task has printed, and then those in `named` that belong to other runs."""
    found = printed(text)
    known = {address.rpartition("/")[2] for address in found}
    return [*found, *(address for address in named if address.rpartition("/")[2] not in known)]


def _wandb(environ: Mapping[str, str]) -> str:
    parts = [environ.get(name, "") for name in ("WANDB_ENTITY", "WANDB_PROJECT", "WANDB_RUN_ID")]
    if not all(parts) or environ.get("WANDB_MODE", "").lower() in _NOT_SENT:
        return ""
    said = environ.get("WANDB_BASE_URL") or _PUBLIC
    entity, project, run = map(_quoted, parts)
    return f"{_server(_PUBLIC if said.rstrip('/') == _API else said)}/{entity}/{project}/runs/{run}"


def _mlflow(environ: Mapping[str, str]) -> str:
    server, run = _server(environ.get("MLFLOW_TRACKING_URI", "")), environ.get("MLFLOW_RUN_ID", "")
    experiment = environ.get("MLFLOW_EXPERIMENT_ID", "")
    return f"{server}/#/experiments/{experiment}/runs/{run}" if server and run and experiment else ""


def _server(address: str) -> str:
    """Return the address of a server without user, password and query; empty if it is not a web address."""
    found = re.match(_SERVER, address, re.ASCII)
    return f"{found[1]}{found[2]}" if found else ""


def _quoted(text: str) -> str:
    """Return a string quoted for use in the path of an address."""
    return re.sub(
        r"[^\w.~-]",
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace")),
        text,
        flags=re.ASCII,
    )
