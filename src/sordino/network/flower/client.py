"""The `ClientApp`: a question in, an answer out. What a node has is told by its owner, in ``--node-config``."""

from __future__ import annotations

import os

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordino.network.flower.records import bytes_of, content_of
from sordino.network.resident import answered

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """Nothing that goes wrong here may leave as an exception: Flower sends its text to the server."""
    question, shared = bytes_of(message)
    found = answered(context.node_config, question, shared, owner=os.getppid())
    if found is None:  # then here, which takes the time to load torch and the rows
        from sordino.network.node import answer_of

        found = answer_of(context.node_config, question, shared)
    return Message(content=content_of(found), reply_to=message)
