"""The app of a node: it gives the server's support to the local memory, and answers with the memory's votes."""

# pyright: reportMissingImports=false

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from jlibo.integrations.flower import records
from jlibo.tune import federated

app = ClientApp()
_log = logging.getLogger("flwr")  # Flower's own, so that its settings apply


class AnswerFailed(Exception):
    """A node could not answer. The reason is in the log of the node and is not sent to the server."""


@app.query(records.QUERY)
def answer(message: Message, context: Context) -> Message:
    """Return the votes of all finished tasks whose votes the server has not confirmed.

    Each question runs in a new process. Nothing is kept but the memory, whose path is `memory` in the node's
    configuration, so a question can be repeated and an answer can be lost.

    **Raises:** `AnswerFailed`, without any details: Flower sends the text of an error to the server.
    """
    try:
        memory = _memory(context)
        announcement, receipt = records.read_question(message.content)
        if receipt is not None:
            federated.confirm(memory, receipt)
        federated.publish(memory, announcement)
        votes = federated.new_votes(memory, limit=records.MAX_VOTES)
        content = records.answer([vote.to_bytes() for vote in votes])
    except Exception:
        _log.exception("The node cannot answer the server.")
        raise AnswerFailed("The node cannot answer; its own log says why.") from None
    _log.info("Sent %d votes; support %s.", len(votes), list(announcement.support))
    return Message(content=content, reply_to=message)


def _memory(context: Context) -> Path:
    found = context.node_config.get("memory")
    if not isinstance(found, str) or not found:
        raise ValueError("The node's configuration should have `memory`, the path of the memory.")
    path = Path(found)
    if not path.is_file():
        raise ValueError(f"There is no memory '{path}' yet. A tuner makes it when its first task starts.")
    return path
