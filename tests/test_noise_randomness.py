from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sordino.noise import Streams


def test_streams_differ_by_key_purpose_and_step() -> None:
    streams = Streams.from_seed(1)
    base = streams.words("noise", 0, 64)
    for other in (
        streams.words("noise", 1, 64),
        streams.words("sampling", 0, 64),
        Streams.from_seed(2).words("noise", 0, 64),
        Streams.from_entropy().words("noise", 0, 64),
    ):
        assert not np.any(other == base)


def test_a_replay_is_the_same_draw_whatever_was_drawn_between() -> None:
    streams = Streams.from_seed(1)
    first = streams.words("noise", 7, 1000)
    streams.words("noise", 8, 17)
    assert np.array_equal(streams.words("noise", 7, 1000), first)
    assert np.array_equal(Streams(streams.key, seeded=False).words("noise", 7, 1000), first)


def test_longer_reads_go_on_where_shorter_ones_stop() -> None:
    streams = Streams.from_seed(3)
    assert np.array_equal(streams.words("noise", 0, 300_000)[:1000], streams.words("noise", 0, 1000))


def test_words_are_uniform() -> None:
    words = Streams.from_seed(4).words("noise", 0, 200_000)
    assert stats.kstest(words.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-3
    bits = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * len(words))


def test_entropy_gives_fresh_keys_and_is_not_called_seeded() -> None:
    one, two = Streams.from_entropy(), Streams.from_entropy()
    assert one.key != two.key
    assert not one.seeded
    assert Streams.from_seed(0).seeded


@pytest.mark.parametrize("purpose", ["model", "initialisation"])
def test_seeds_for_other_generators_fit_a_signed_integer(purpose: str) -> None:
    assert all(0 <= Streams.from_seed(s).seed_for(purpose, 0) < 2**63 for s in range(20))
