"""The commands of Flower's processes, and the environment and configuration that they need."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from jlibo import files
from jlibo.checks import fail
from jlibo.integrations.flower.certificates import Certificates

APP = Path(__file__).parent / "app"
"""The folder of the Flower app, for `flwr run`. It has no code: nodes use the jlibo they have installed."""

CONNECTION = "jlibo"
"""The name of the connection in `write_connection`."""

Value = str | float | bool
"""A value in Flower's configurations."""


def program(name: str) -> str:
    """Return the path of one of Flower's programs in this Python's environment."""
    return str(Path(sys.executable).parent / name)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: this one's, without telemetry, updates and downloads.

    **Arguments:**

    - `home`: Flower's folder, for its configuration and apps. Server and nodes have one each.
    """
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # Flower starts its own programs by name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def config_text(config: Mapping[str, Value]) -> str:
    """Return settings in the form that Flower's command lines read.

    **Raises:** `ValueError` if a text has a double quote, which that form has no way to write.
    """
    for name, value in config.items():
        if '"' in str(value):
            fail(name, "text without double quotes", value)
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


def superlink_command(certificates: Certificates, database: Path, *, host: str, port: int) -> list[str]:
    """Return the command of a SuperLink that uses TLS and admits registered nodes only."""
    return [
        program("flower-superlink"),
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(certificates.authority)),
        *("--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key)),
        *("--database", str(database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def supernode_command(
    address: str, authority: Path, key: Path, config: Mapping[str, Value], *, runtime_port: int
) -> list[str]:
    """Return the command of a SuperNode.

    **Arguments:**

    - `address`: host and port of the SuperLink.
    - `authority`: the certificate of the authority that signed the SuperLink's.
    - `key`: the private key of the node.
    - `config`: the configuration of the node, which stays there: the path of the `memory` of its tuner, and
      settings of its votes.
    - `runtime_port`: a free port on 127.0.0.1, by which the processes of the node talk to each other.
    """
    return [
        program("flower-supernode"),
        *("--superlink", address, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(runtime_port)),
        *("--node-config", config_text(config)),
    ]


def run_command(ballot: Path, *, seconds: float = 30.0, timeout: float = 600.0) -> list[str]:
    """Return the command that runs the app on the SuperLink of `write_connection`, and shows its log."""
    config = {"ballot": str(ballot), "seconds": float(seconds), "timeout": float(timeout)}
    return [program("flwr"), "run", str(APP), CONNECTION, "--stream", "--run-config", config_text(config)]


def register_command(public_key: Path) -> list[str]:
    """Return the command that registers the public key of a node with the SuperLink of `write_connection`."""
    return [program("flwr"), "supernode", "register", str(public_key), CONNECTION]


def write_connection(home: Path, address: str, authority: Path) -> None:
    """Write the address of a SuperLink into Flower's configuration, for `flwr run` and `flwr supernode`."""
    lines = (
        "[superlink]",
        f"default = {json.dumps(CONNECTION)}",
        "",
        f"[superlink.{CONNECTION}]",
        f"address = {json.dumps(address)}",
        f"root-certificates = {json.dumps(str(authority))}",
        "",
    )
    home.mkdir(parents=True, exist_ok=True)
    content = "\n".join(lines).encode()
    files.write_atomically(home / "config.toml", lambda file: file.write(content))


def own_command(*words: str | Path | float) -> list[str]:
    """Return the command `python -m jlibo.integrations.flower` with words, in this Python."""
    return [sys.executable, "-m", "jlibo.integrations.flower", *map(str, words)]
