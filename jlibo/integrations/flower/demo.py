"""A demonstration: a server and three clinics as processes on this machine, each tuning tasks of its own.

python -m jlibo.integrations.flower demo
"""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jlibo.federated import BallotFile, BallotRules
from jlibo.integrations.flower.certificates import client_of
from jlibo.integrations.flower.local import LocalFederation
from jlibo.tune import SearchSpace, Tuner
from jlibo.tune.model import make_model
from jlibo.tune.space import Float

SPACE = SearchSpace(
    rate=Float(1e-4, 1, log=True), depth=Float(1, 10), dropout=Float(0, 0.9), decay=Float(1e-6, 1, log=True)
)
CLINICS = ("north", "south", "east")
NUM_TASKS = 6
"""Number of tasks of each clinic."""
BUDGET, QUORUM, ALPHA = 24, 3, 0.35
_TRAINING_SECONDS, _MOST_SECONDS = 0.4, 240.0


def score(params: Mapping[str, Any], task: np.random.Generator, *, dropout: float) -> float:
    """Return the score of a configuration: `rate` and `depth` always matter, `dropout` in the north."""
    best_rate, best_depth = task.uniform(-3, -1), task.uniform(3, 8)
    rate = np.log10(params["rate"]) - best_rate
    depth = (params["depth"] - best_depth) / 3
    return float(-(rate**2) - depth**2 - dropout * params["dropout"])


def tune(clinic: int, memory: Path, num_tasks: int) -> None:
    """Tune the tasks of one clinic, as on any machine: the tuner reads the support from its memory."""
    with Tuner(SPACE, memory=memory, mode="federated", seed=clinic) as tuner:
        for number in range(num_tasks):
            task = tuner.task(f"{CLINICS[clinic]} {number}", BUDGET)
            for trial in task:
                time.sleep(_TRAINING_SECONDS)
                random = np.random.default_rng((clinic, number))
                task.tell(trial, score(trial.params, random, dropout=0.0 if clinic else 3.0))


def main(num_tasks: int = NUM_TASKS) -> int:
    """Run the demonstration and return its exit code: 0 if every task has voted.

    **Arguments:**

    - `num_tasks`: number of tasks of each clinic.
    """
    console = Console()
    names = make_model(SPACE, mode="federated").names
    rules = BallotRules(
        num_kernels=len(names),
        alpha=ALPHA,
        horizon=1000,
        num_explore=0,
        quorum=QUORUM,
        max_votes=num_tasks,
    )
    with tempfile.TemporaryDirectory(prefix="jlibo-federation-") as temporary:
        folder = Path(temporary)
        memories = {name: folder / f"{name}.db" for name in CLINICS}
        with BallotFile.open(folder / "ballot.db", rules) as ballot, LocalFederation(folder) as federation:
            console.print("Starting a SuperLink and three SuperNodes with TLS on 127.0.0.1.")
            federation.start_link()
            for number, (name, memory) in enumerate(memories.items()):
                federation.start_node(name, memory)
                command = [sys.executable, "-m", __spec__.name, str(number), str(memory), str(num_tasks)]
                federation.processes.start(f"{name} tunes", command, federation.environment)
            federation.start_run(folder / "ballot.db", seconds=2.0, timeout=30.0)
            clients = {name: client_of(folder / name / "key.pub") for name in CLINICS}
            done = _watch(console, ballot, clients, names, num_tasks * len(CLINICS))
            _show(console, ballot, names)
            processes = federation.processes
        console.print(f"Processes left: {len(processes.running())}.")
    if not done:
        console.print(f"Not all tasks have voted within {_MOST_SECONDS:g} seconds.")
    return 0 if done else 1


def _watch(
    console: Console, ballot: BallotFile, clients: dict[str, str], names: Sequence[str], expected: int
) -> bool:
    """Print a line whenever votes were counted; return whether all tasks have voted in time."""
    start, num_votes, before = time.monotonic(), -1, frozenset(range(len(names)))
    console.print(
        f"{'time':>6}  votes  {'  '.join(f'{name:>5}' for name in clients)}  kernel of the next tasks"
    )
    while num_votes < expected and time.monotonic() < start + _MOST_SECONDS:
        announcement, by_client = ballot.announcement(), ballot.votes_by_client()
        if announcement.num_clients != num_votes:
            num_votes, support = announcement.num_clients, frozenset(announcement.support)
            own = "  ".join(f"{by_client.get(client, 0):>5}" for client in clients.values())
            elected = ", ".join(names[index] for index in announcement.support) or "none: the full kernel"
            if num_votes < QUORUM:
                elected = f"full, until there are {QUORUM} votes"
            seconds, changes = time.monotonic() - start, "" if support == before else "  <- elected anew"
            line = f"{seconds:5.0f}s  {num_votes:>5}  {own}  {elected}{changes}"
            console.print(line, highlight=False, soft_wrap=True)
            before = support
        time.sleep(0.5)
    return num_votes == expected


def _show(console: Console, ballot: BallotFile, names: Sequence[str]) -> None:
    table = Table(title="Votes on the server")
    table.add_column("kernel")
    table.add_column("votes", justify="right")
    table.add_column("")
    table.add_column("elected")
    support, num_votes = ballot.announcement().support, ballot.num_votes
    for index, (name, count) in enumerate(zip(names, ballot.counts(), strict=True)):
        bar = "#" * round(20 * count / max(1, num_votes))
        table.add_row(name, str(count), bar, "yes" if index in support else "")
    console.print(table)
    console.print(f"{num_votes} votes were cast. A kernel needs {ALPHA:.0%} of them.")


if __name__ == "__main__":
    tune(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
