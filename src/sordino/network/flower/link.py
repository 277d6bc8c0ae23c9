"""Questions and answers over Flower's `Grid`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from sordino.network.flower.records import KIND, bytes_of, content_of

_POLL = (0.05, 0.5)  # seconds between looks for answers: the first, and the longest
_SPARE = 60.0  # seconds that a message lives longer than it is waited for


class GridLink:
    """Looks for answers often: the grid's own `send_and_receive` sleeps three seconds between two looks."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        return [int(node) for node in self._grid.get_node_ids()]

    def ask(
        self, questions: Mapping[int, bytes], shared: bytes, most: Mapping[int, int], patience: float
    ) -> Iterator[tuple[int, bytes | None]]:
        end = time.monotonic() + patience
        messages = [
            Message(content_of(own, shared), dst_node_id=node, message_type=KIND, ttl=patience + _SPARE)
            for node, own in questions.items()
        ]
        waiting: dict[str, int] = {}
        for node, number in zip(questions, self._grid.push_messages(messages), strict=True):
            if number:
                waiting[number] = node
            else:
                yield node, None
        pause = _POLL[0]
        while waiting and time.monotonic() < end:
            replies = list(self._grid.pull_messages(list(waiting)))
            for reply in replies:
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, _answer_of(reply, node)
            pause = _POLL[0] if replies else min(_POLL[1], 1.5 * pause)
            if waiting:
                time.sleep(pause)


def _answer_of(reply: Message, node: int) -> bytes | None:
    """None for an error, and for an answer that another node gave in its name."""
    if reply.has_error() or reply.metadata.src_node_id != node:
        return None
    return bytes_of(reply)[0] or None
