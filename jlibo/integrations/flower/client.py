"""The app of a node: it stores the server's support in the local memory, and answers with new votes."""

# pyright: reportMissingImports=false

import dataclasses
import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from jlibo.checks import fail
from jlibo.integrations.flower import records
from jlibo.tune import federated

app = ClientApp()
_SIZES = "sizes."
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
        memory, settings = _config(context)
        announcement, receipt = records.read_question(message.content)
        if receipt is not None:
            federated.confirm(memory, receipt)
        federated.publish(memory, announcement, sizes=settings.sizes)
        votes = federated.new_votes(memory, settings=settings, limit=records.MAX_VOTES)
        content = records.answer([vote.to_bytes() for vote in votes])
    except Exception:
        _log.exception("The node cannot answer the server.")
        raise AnswerFailed("The node cannot answer; its own log says why.") from None
    _log.info("Sent %d votes; support %s.", len(votes), list(announcement.support))
    return Message(content=content, reply_to=message)


def _config(context: Context) -> tuple[Path, federated.ClientSettings]:
    """Return the path of the memory and the settings of votes in the configuration of the node."""
    config = dict(context.node_config)
    memory = config.pop("memory", None)
    if not isinstance(memory, str) or not memory:
        fail("memory", "the path of a memory, in the configuration of the node", memory)
    sizes = {name.removeprefix(_SIZES): config.pop(name) for name in list(config) if name.startswith(_SIZES)}
    unknown = config.keys() - {field.name for field in dataclasses.fields(federated.ClientSettings)}
    if unknown:
        fail("the configuration of the node", "settings of votes and `memory`", sorted(unknown))
    return Path(memory), federated.ClientSettings(**config, sizes=sizes or None)
