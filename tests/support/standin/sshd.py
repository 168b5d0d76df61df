"""A real sshd in the machine of a lab, with keys of its own, and the real ssh as the program that reaches it."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess

from tests.support.standin.nodes import Lab
from tests.support.waiting import wait_until

SSHD, SSH = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin"), shutil.which("ssh")
MISSING = "there is no sshd here"
_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv {environ}
"""
_CLIENT = """\
Host {name}
    HostName 127.0.0.1
    Port {port}
    IdentityFile {folder}/user
    IdentitiesOnly yes
    StrictHostKeyChecking yes
    UserKnownHostsFile {folder}/known
"""


def serve(lab: Lab, name: str) -> subprocess.Popen[bytes]:
    """Let a machine of a lab be reached by ssh and sshd alone; return the server, which ends with the machine."""
    node, folder = lab.nodes[name], lab.root / f"sshd-{name}"
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    port = _free_port()
    environ = " ".join(f'"{name}={text}"' for name, text in [*node.env.items(), lab.mark.split("=")])
    (folder / "server").write_text(_SERVER.format(port=port, folder=folder, environ=environ))
    (folder / "client").write_text(_CLIENT.format(name=name, port=port, folder=folder))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    log = folder / "log"
    command = f"mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec {SSHD} -D -E {log} -f {folder}/server"
    server = subprocess.Popen(
        ["sh", node.folder / "enter", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    (lab.root / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {SSH} -F {shlex.quote(str(folder / "client"))} "$@"\n')
    wait_until(lambda: log.exists() and "listening" in log.read_text(), 10)
    return server


def sessions(lab: Lab, name: str) -> list[int]:
    """Return the processes of sshd that serve a connection each."""
    return lab.nodes[name].processes("sshd: root@")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
