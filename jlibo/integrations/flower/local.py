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
        self.environment = commands.environment(folder / "server")
        commands.write_connection(folder / "server", f"{_HOST}:{self.port}", self.certificates.authority)

    def __enter__(self) -> "LocalFederation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.end()

    def start_link(self) -> None:
        """Start the SuperLink, or start it again on the same port and database, and wait until it listens."""
        database = self.folder / "server" / "link.db"
        command = commands.superlink_command(self.certificates, database, host=_HOST, port=self.port)
        process = self.processes.start("link", command, self.environment)
        wait_for_port(self.port, process)

    def make_key(self, name: str) -> Path:
        """Make the key of a node, and return its path."""
        return make_node_key(self.folder / name / "key")

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

    def start_node(
        self,
        name: str,
        memory: Path,
        *,
        key: Path | None = None,
        authority: Path | None = None,
        address: str | None = None,
    ) -> None:
        """Start a SuperNode that answers from a memory.

        **Arguments:**

        - `name`: the name of the node, by which it has a folder and a log.
        - `memory`: the path of the node's memory.
        - `key`: its key; by default one is made and registered when the node is first started.
        - `authority`: the certificate by which it knows the SuperLink; by default the right one.
        - `address`: host and port of the SuperLink; by default the right ones.
        """
        if key is None:
            key = self.folder / name / "key"
            if not key.exists():
                self.register(self.make_key(name))
        command = commands.supernode_command(
            address or f"{_HOST}:{self.port}",
            authority or self.certificates.authority,
            key,
            memory,
            runtime_port=free_port(),
        )
        self.processes.start(name, command, commands.environment(self.folder / name))

    def start_run(self, ballot: Path, *, seconds: float = 5.0, timeout: float = 60.0) -> None:
        """Start a run, which asks all nodes for votes and casts them into a ballot, until the SuperLink ends.

        The log of the run is that of the process "run".
        """
        command = commands.run_command(ballot, seconds=seconds, timeout=timeout)
        self.processes.start("run", command, self.environment)
