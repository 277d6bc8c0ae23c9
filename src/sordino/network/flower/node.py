"""`sordino node`: a SuperNode for one purpose. It answers Sordino's messages in its own process, and runs no other
code, whatever app a SuperLink sends; so it needs no process for a message, and looks for them often."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from sordino.network.flower.link import LOST
from sordino.network.flower.records import bytes_of, content_of
from sordino.network.flower.superlink import SuperLink, is_about_trust, unreachable
from sordino.network.node import Node, NodeSettings

_NOT_YET = (
    "the SuperLink does not take this node yet: its server has to be given {key}.pub (--node-keys); or the node was "
    "there a moment ago, and has to be missed first"
)
_POLL = (0.2, 1.0)  # seconds between looks for messages: after one, and the longest


def serve(settings: NodeSettings, superlink: SuperLink, key: Path | None) -> None:
    """Take part in federations until somebody ends it. The rows are not read before a federation says what they are."""
    node, keys = Node(settings), None if key is None else _keys(key)
    _admitted(superlink, key, keys)
    certificates = superlink.certificates.read_bytes() if superlink.certificates else None
    with http_request_response(superlink.address, not superlink.tls, certificates, keys) as connection:
        number, receive = connection[:2]
        print(
            f"node {settings.name} is connected to {superlink.address} (SuperNode {number})", file=sys.stderr
        )
        pause = _POLL[0]
        while True:
            found = receive()
            if found is None:
                time.sleep(pause)
                pause = min(_POLL[1], 1.2 * pause)
                continue
            pause = _POLL[0]
            try:
                _answer(node, number, *found, *connection[2:3], *connection[5:])
            except LOST as error:  # the server will ask again
                print(f"an answer was lost ({type(error).__name__})", file=sys.stderr)


def _answer(
    node: Node, number: int, message: Message, tree: Any, send: Any, pull: Any, push: Any, confirm: Any
) -> None:
    run = message.metadata.run_id
    contents = pull_objects([each.object_id for each in iterate_object_tree(tree)], partial(pull, run))
    confirm(run, tree.object_id)
    question = inflate_object_from_contents(tree.object_id, contents)
    question.metadata.__dict__["_message_id"] = tree.object_id
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, number, 0
    started = time.monotonic()
    reply = Message(content_of(node.answer(*bytes_of(question))), reply_to=question)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        objects = get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), time.monotonic() - started)
        push_objects(objects, partial(push, run, session), object_ids_to_push=wanted)


def _admitted(superlink: SuperLink, key: Path | None, keys: tuple[Any, Any] | None) -> None:
    """Wait until the SuperLink is there and lets this node in; raise ValueError if it is not the one, or never will."""
    said = ""
    while True:
        why = f"waiting for a SuperLink at {superlink.address}"
        try:
            if keys is None and not superlink.takes_anybody():
                raise ValueError(
                    "the SuperLink takes nodes that prove who they are: give the node's key as --key"
                )
            if keys is None or superlink.knows(*keys):
                return
            why = _NOT_YET.format(key=key)
        except httpx.TransportError as error:
            if is_about_trust(error):
                raise ValueError(unreachable(superlink, error)) from error
        if why != said:
            print(why, file=sys.stderr)
        said = why
        time.sleep(_POLL[1])


def _keys(path: Path) -> tuple[Any, Any]:
    try:
        private = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"{path} is no private key of a node: make one with ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
        ) from error
    return private, private.public_key()
