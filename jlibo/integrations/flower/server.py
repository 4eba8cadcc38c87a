"""The app of the server: it asks nodes for votes, casts them into the ballot, and gives nodes the support."""

# pyright: reportMissingImports=false

import logging
import time
from typing import final

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from jlibo.checks import fail
from jlibo.federated import BallotFile, MessageError, Receipt
from jlibo.integrations.flower import records
from jlibo.integrations.flower.certificates import client_of
from jlibo.printable import printable

app = ServerApp()
_log = logging.getLogger("flwr")  # Flower's own, so that its settings apply
_POLL_SECONDS = 0.5


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask nodes for votes until the run is stopped.

    The run's configuration has the path of the `ballot`, which must exist; `seconds` between two questions to
    a node, and the `timeout` of an answer in seconds. All state is in the ballot: a new run continues an old
    one that ended or was killed, and two runs at once do no harm.
    """
    path, seconds, timeout = (context.run_config[name] for name in ("ballot", "seconds", "timeout"))
    if not path:
        fail("ballot", "the path of a ballot, such as --run-config 'ballot=\"/srv/ballot.db\"'", path)
    with BallotFile.open_existing(str(path), write=True) as ballot:
        collector = Collector(grid, ballot, seconds=float(seconds), timeout=float(timeout))
        while True:
            collector.step()
            time.sleep(_POLL_SECONDS)


@final
class Collector:
    """Conversations with all nodes. What it knows beside the ballot may be lost at any time.

    **Arguments:**

    - `grid`: the nodes of a run.
    - `ballot`: where votes are counted.
    - `seconds`: time between an answer of a node and the next question to it.
    - `timeout`: seconds after which a question that was not answered is asked again.
    """

    def __init__(self, grid: Grid, ballot: BallotFile, *, seconds: float, timeout: float):
        if seconds < 0 or timeout <= 0:
            fail("seconds and timeout", "not negative and positive", (seconds, timeout))
        self._grid, self._ballot = grid, ballot
        self._seconds, self._timeout = seconds, timeout
        self._waiting: dict[str, tuple[int, str, float]] = {}  # message: node, client, end of waiting
        self._due: dict[int, float] = {}  # node: time of the next question
        self._receipts: dict[int, Receipt] = {}
        self._support: tuple[int, ...] | None = None

    def step(self) -> int:
        """Ask the nodes that are due, cast the votes of answers that are here, and return their number."""
        now = time.monotonic()
        self._waiting = {message: one for message, one in self._waiting.items() if one[2] > now}
        asked = {node for node, _, _ in self._waiting.values()}
        clients = {node.node_id: client_of(node.public_key) for node in self._grid.get_nodes()}
        due = [node for node in clients if node not in asked and self._due.get(node, now) <= now]
        if due:
            announcement = self._ballot.announcement()
            if announcement.support != self._support:
                self._support = announcement.support
                _log.info("Support after %d clients: %s", announcement.num_clients, list(self._support))
            questions = [
                Message(
                    content=records.question(announcement, self._receipts.get(node)),
                    dst_node_id=node,
                    message_type=f"query.{records.QUERY}",
                    ttl=self._timeout,
                )
                for node in due
            ]
            for message, node in zip(self._grid.push_messages(questions), due, strict=False):
                if message:
                    self._waiting[message] = node, clients[node], now + self._timeout
        return sum(self._read(reply) for reply in self._replies())

    def _replies(self) -> list[Message]:
        return list(self._grid.pull_messages(list(self._waiting))) if self._waiting else []

    def _read(self, reply: Message) -> int:
        """Cast the votes of an answer. The node is the one that was asked, whose key Flower has checked."""
        found = self._waiting.pop(reply.metadata.reply_to_message_id, None)
        if found is None:
            return 0
        node, client, _ = found
        self._due[node] = time.monotonic() + self._seconds
        if reply.has_error():
            _log.warning("Client %s did not answer: %s", client[:8], printable(reply.error.reason))
            return 0
        try:
            votes = records.read_answer(reply.content)
        except MessageError as error:
            _log.warning("Refused the answer of client %s: %s", client[:8], error)
            return 0
        reception = self._ballot.receive(client, votes)
        self._receipts[node] = reception.receipt
        for refusal in reception.refusals:
            _log.warning("Refused from client %s: %s", client[:8], refusal)
        if len(votes) == records.MAX_VOTES:
            self._due[node] = time.monotonic()  # there may be more
        return len(votes)
