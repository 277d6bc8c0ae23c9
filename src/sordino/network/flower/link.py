"""Questions and answers over Flower's `Grid`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from sordino.network.flower.records import KIND, bytes_of, content_of

LOST = (
    httpx.HTTPError,
    RunNotRunningException,
    ConnectionError,
)  # what a grid raises when its SuperLink is gone
_POLL = (0.1, 0.5)  # seconds between looks for answers: the first, and the longest
_AT_ONCE = 1 << 28  # bytes of answers
_SPARE = 60.0  # seconds that a message lives longer than it is waited for


class GridLink:
    """Looks for answers often: the grid's own `send_and_receive` sleeps three seconds between two looks.

    ``renewed`` gives another grid when one is lost, or raises ValueError; what was not answered is asked again. With
    ``keys`` no other node is there: a SuperLink has checked that a node has the private key to its public one, but
    anybody who reaches it can have it register another.
    """

    def __init__(
        self, grid: Grid, renewed: Callable[[], Grid] | None = None, keys: frozenset[bytes] | None = None
    ) -> None:
        self._grid, self._renewed, self._keys = grid, renewed, keys

    def nodes(self) -> Sequence[int]:
        while True:
            try:
                nodes = self._grid.get_nodes()
                return [
                    int(node.node_id) for node in nodes if self._keys is None or node.public_key in self._keys
                ]
            except LOST as error:
                self._renew(error)

    def ask(
        self, questions: Mapping[int, bytes], shared: bytes, most: Mapping[int, int], patience: float
    ) -> Iterator[tuple[int, bytes | None]]:
        end, left = time.monotonic() + patience, dict(questions)
        while left and time.monotonic() < end:
            try:
                for node, answer in self._answers(left, shared, most, end):
                    del left[node]
                    yield node, answer
                return
            except LOST as error:
                self._renew(error)

    def _renew(self, error: Exception) -> None:
        if self._renewed is None:
            raise error
        self._grid = self._renewed()

    def _answers(
        self, questions: Mapping[int, bytes], shared: bytes, most: Mapping[int, int], end: float
    ) -> Iterator[tuple[int, bytes | None]]:
        lives = end - time.monotonic() + _SPARE
        messages = [
            Message(content_of(own, shared), dst_node_id=node, message_type=KIND, ttl=lives)
            for node, own in questions.items()
        ]
        numbers = list(self._grid.push_messages(messages))
        waiting = {number: node for node, number in zip(list(questions), numbers, strict=True) if number}
        yield from ((node, None) for node in set(questions) - set(waiting.values()))
        pause = _POLL[0]
        while waiting and time.monotonic() < end:
            pause = min(_POLL[1], 1.5 * pause)
            for some in _in_parts(waiting, most):
                for number, reply in self._pulled(some):
                    node = waiting.pop(number, None)
                    if node is not None:
                        pause = _POLL[0]
                        yield node, None if reply is None else _answer_of(reply, node)
            if waiting:
                time.sleep(pause)

    def _pulled(self, numbers: list[str]) -> list[tuple[str, Message | None]]:
        """Replies that are there, by the question; None for one that is no message, which Flower does not notice before
        it stumbles over it."""
        try:
            replies = list(self._grid.pull_messages(numbers))
            return [(reply.metadata.reply_to_message_id, reply) for reply in replies]
        except LOST:
            raise
        except Exception:
            if len(numbers) == 1:
                return [(numbers[0], None)]
        return [found for number in numbers for found in self._pulled([number])]


def _in_parts(waiting: Mapping[str, int], most: Mapping[int, int]) -> list[list[str]]:
    """Messages that may be fetched at once: all of them are in memory then."""
    parts: list[list[str]] = [[]]
    size = 0
    for number, node in waiting.items():
        size += most[node]
        if parts[-1] and size > _AT_ONCE:
            parts.append([])
            size = most[node]
        parts[-1].append(number)
    return parts


def _answer_of(reply: Message, node: int) -> bytes | None:
    """None for an error, and for an answer that another node gave in its name."""
    if reply.has_error() or reply.metadata.src_node_id != node:
        return None
    return bytes_of(reply)[0] or None
