"""A whole federation on this machine: a SuperLink and SuperNodes as processes on 127.0.0.1."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import final

from jlibo.integrations.flower import commands
from jlibo.integrations.flower.certificates import make_certificates, make_node_key
from jlibo.integrations.flower.processes import Processes, free_port, wait_for_port

_HOST = "127.0.0.1"


@final
class LocalFederation:
    """A SuperLink and SuperNodes with TLS and registered keys, bound to 127.0.0.1, for trying and testing.

    Everything they write is in one folder. On several machines, each process is started by its own command
    (see the guide on federated tuning).

    **Arguments:**

    - `folder`: a folder for certificates, keys, databases and logs.

    ```python title="needs flower"
    with LocalFederation(folder) as federation:
        federation.start_link()
        federation.start_node("clinic", folder / "clinic.db")
        federation.start_run(folder / "ballot.db")
    ```
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes = Processes(folder / "logs")
        self.certificates = make_certificates(folder / "server", [_HOST, "localhost"])
        self.port = free_port()
        self.address = f"{_HOST}:{self.port}"
        self.environment = commands.environment(folder / "server")

    def __enter__(self) -> "LocalFederation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.end()

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        command = commands.own_command("server", self.folder / "server", "--port", self.port)
        wait_for_port(self.port, self.processes.start("link", command, self.environment))

    def register(self, key: Path) -> None:
        """Register the public key of a node.

        **Raises:** `RuntimeError` with the command's output if the SuperLink refuses it.
        """
        public = key.with_name(key.name + ".pub")
        done = subprocess.run(
            commands.register_command(public),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the key cannot be registered: {done.stdout}{done.stderr}")

    def start_node(self, name: str, memory: Path) -> None:
        """Start a SuperNode that answers from a memory.

        **Arguments:**

        - `name`: the name of the node, which has a folder, a key and a log of this name. Its key is made and
          registered when it is first started.
        - `memory`: the path of the memory of the node's tuner.
        """
        key = self.folder / name / "key"
        if not key.exists():
            self.register(make_node_key(key))
        command = commands.own_command(
            *("node", self.folder / name, "--superlink", self.address, "--key", key, "--memory", memory),
            *("--authority", self.certificates.authority, "--runtime-port", free_port()),
        )
        self.processes.start(name, command, self.environment)

    def start_run(self, ballot: Path, *, seconds: float = 5.0, timeout: float = 60.0) -> None:
        """Start a run, which asks all nodes for votes and casts them into a ballot, until the SuperLink ends.

        The log of the run is that of the process "run".
        """
        intervals = ("--seconds", seconds, "--timeout", timeout)
        command = commands.own_command("run", self.folder / "server", ballot, *intervals)
        self.processes.start("run", command, self.environment)
