"""Flower without its processes: a grid whose nodes answer in this process, and the death of the process."""

import functools
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from jlibo.integrations.flower import client


class Node(NamedTuple):
    """What Flower's grid says about a node."""

    node_id: int
    public_key: bytes


def context(node: int, config: Mapping[str, Any]) -> Context:
    return Context(
        run_id=1, node_id=node, node_config=dict(config), state=RecordDict(), run_config={}, series_id=1
    )


def answer_of(memory: Path) -> Callable[[Message], Message]:
    """Return the function by which a node answers a question: that of the client's app."""
    return lambda question: client.answer(
        question, context(question.metadata.dst_node_id, {"memory": str(memory)})
    )


class LocalGrid:
    """A grid whose nodes are functions. `drop` takes an answer and says whether it is lost on its way."""

    def __init__(self, nodes: Mapping[bytes, Callable[[Message], Message]]):
        self.nodes = {number: (key, fn) for number, (key, fn) in enumerate(nodes.items(), start=1)}
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.drop: Callable[[Message], bool] = lambda _: False
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = (
            1  # as in Flower's process of a server's app
        )

    def get_nodes(self) -> Iterable[Node]:
        return [Node(number, key) for number, (key, _) in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = name  # Flower sets it when it sends a message
            self.sent.append(message)
            _, answer_fn = self.nodes[message.metadata.dst_node_id]
            try:
                reply = answer_fn(message)
            except Exception as error:  # Flower sends an error with its type and text
                reply = Message(Error(3, f"{type(error)}:<'{error}'>"), reply_to=message)
            if not self.drop(reply):
                self.replies[name] = reply
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]


def reply_with(content: Mapping[str, Any]) -> Callable[[Message], Message]:
    """Return the function of a node that answers every question with the same content."""
    record = (
        content if isinstance(content, RecordDict) else RecordDict({"jlibo": ConfigRecord(dict(content))})
    )
    return lambda question: Message(record, reply_to=question)


class Death:
    """Kill this process (SIGKILL) at its `step`-th step: before or after a function that was wrapped."""

    def __init__(self, step: int):
        self._left = step

    def wrap(self, owner: Any, name: str) -> None:
        wrapped = getattr(owner, name)

        @functools.wraps(wrapped)
        def mortal(*args: Any, **kwargs: Any) -> Any:
            self._step()
            result = wrapped(*args, **kwargs)
            self._step()
            return result

        setattr(owner, name, mortal)

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
