"""Commands for the machines of a federation: `python -m jlibo.integrations.flower --help`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jlibo.integrations.flower import commands, demo
from jlibo.integrations.flower.certificates import Certificates, client_of, make_certificates, make_node_key
from jlibo.integrations.flower.processes import keep_running

_NODE_HINT = """\
Is the key of this node registered with the server? Is --authority the certificate of the server's authority?
A node that was killed is admitted again when the server has noticed that it is gone, after about a minute."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of a server, of a node, or the demonstration, and return its exit code."""
    options = _parser().parse_args(arguments)
    return options.command(options) or 0


def _certificates(options: argparse.Namespace) -> None:
    made = make_certificates(options.folder, options.host, num_days=options.days)
    print(f"Made {made.certificate} and {made.key} for the server, and {made.authority} for every node.")


def _key(options: argparse.Namespace) -> None:
    made = make_node_key(options.path)
    print(f"Made {made}, which stays on the node, and {made}.pub for the server.")


def _server(options: argparse.Namespace) -> None:
    folder = options.folder
    certificates = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    commands.write_connection(folder, f"{options.name}:{options.port}", certificates.authority)
    database = folder / "link.db"
    command = commands.superlink_command(certificates, database, host=options.host, port=options.port)
    keep_running(command, commands.environment(folder))


def _register(options: argparse.Namespace) -> int:
    code = subprocess.run(
        commands.register_command(options.public_key), env=commands.environment(options.folder)
    ).returncode
    if code == 0:
        print(f"The ballot knows it as client {client_of(options.public_key)}.")
    return code


def _run(options: argparse.Namespace) -> None:
    command = commands.run_command(options.ballot, seconds=options.seconds, timeout=options.timeout)
    keep_running(command, commands.environment(options.folder))


def _node(options: argparse.Namespace) -> None:
    config = {"memory": str(options.memory)} | dict(options.setting)
    command = commands.supernode_command(
        options.superlink, options.authority, options.key, config, runtime_port=options.runtime_port
    )
    keep_running(command, commands.environment(options.folder), hint=_NODE_HINT)


def _demo(options: argparse.Namespace) -> int:
    return demo.main(options.tasks)


def _path(text: str) -> Path:
    """Return an absolute path: Flower's processes have other working directories."""
    return Path(text).absolute()


def _setting(text: str) -> tuple[str, bool | float]:
    """Return the name and the value of a word such as "max_selected=5"."""
    name, _, value = text.partition("=")
    found = json.loads(value)
    if not isinstance(found, bool | int | float):
        raise ValueError(text)
    return name, found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jlibo.integrations.flower", description="Federated tuning with Flower."
    )
    add = parser.add_subparsers(required=True, metavar="COMMAND").add_parser

    one = add("certificates", help="server: make certificates for TLS")
    one.add_argument("folder", type=_path, help="the server's folder")
    one.add_argument("--host", action="append", required=True, help="a name or address of the server")
    one.add_argument("--days", type=int, default=365, help="for how long they are valid (365)")
    one.set_defaults(command=_certificates)

    one = add("server", help="server: run the SuperLink, and again when it ends")
    one.add_argument("folder", type=_path, help="the folder with the certificates")
    one.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    one.add_argument("--port", type=int, default=8000, help="the port to listen on (8000)")
    one.add_argument("--name", default="127.0.0.1", help="the server's address for `register` and `run`")
    one.set_defaults(command=_server)

    one = add("register", help="server: register the public key of a node")
    one.add_argument("folder", type=_path, help="the server's folder")
    one.add_argument("public_key", type=_path, help="the public key, a file that ends in .pub")
    one.set_defaults(command=_register)

    one = add("run", help="server: ask nodes for votes, in a new run when one ends")
    one.add_argument("folder", type=_path, help="the server's folder")
    one.add_argument("ballot", type=_path, help="the ballot file")
    one.add_argument("--seconds", type=float, default=30.0, help="between two questions to a node (30)")
    one.add_argument("--timeout", type=float, default=600.0, help="of an answer in seconds (600)")
    one.set_defaults(command=_run)

    one = add("key", help="node: make a key")
    one.add_argument("path", type=_path, help="the path of the private key; the public one ends in .pub")
    one.set_defaults(command=_key)

    one = add("node", help="node: run the SuperNode, and again when it ends")
    one.add_argument("folder", type=_path, help="a folder for Flower's files")
    one.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the address of the server")
    one.add_argument("--authority", type=_path, required=True, help="the server's authority.pem")
    one.add_argument("--key", type=_path, required=True, help="the node's private key")
    one.add_argument("--memory", type=_path, required=True, help="the memory of the node's tuner")
    one.add_argument(
        "--setting",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of its votes, such as max_selected=5 (see ClientSettings)",
    )
    one.add_argument("--runtime-port", type=int, default=9094, help="a free port on 127.0.0.1 (9094)")
    one.set_defaults(command=_node)

    one = add("demo", help="a server and three nodes on this machine, for about two minutes")
    one.add_argument("--tasks", type=int, default=demo.NUM_TASKS, help="of each node (%(default)s)")
    one.set_defaults(command=_demo)
    return parser


if __name__ == "__main__":
    sys.exit(main())
