"""Partitions: every row goes to one client, and who gets what follows the rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.data.partitions import (
    CIFAR_PAIRS,
    Dirichlet,
    Natural,
    Partition,
    Pathological,
    Random,
    client_sizes,
    partition_named,
)

Rows = npt.NDArray[np.int64]


def labels_of(rows: int, classes: int = 10, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).integers(0, classes, rows)


def deal(partition: Partition, labels: Rows, clients: int, seed: int = 1) -> list[Rows]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing overflows and nothing is divided by 0 on the way
        found = partition.deal(labels, clients, np.random.default_rng(seed))
    assert len(found) == clients
    for rows in found:
        assert rows.dtype == np.int64
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()
    return found


def counts(found: list[Rows], labels: Rows) -> npt.NDArray[np.int64]:
    """How many rows of each label each client has."""
    return np.array([np.bincount(labels[rows], minlength=int(labels.max()) + 1) for rows in found])


@given(
    partition=st.one_of(
        st.builds(Random, st.sampled_from([0.0, 0.3, 3.0])),
        st.builds(
            Dirichlet, st.sampled_from([1e-100, 1e-6, 0.03, 0.3, 1.0, 1e6]), st.sampled_from([0.0, 0.3, 3.0])
        ),
        st.builds(Pathological, st.none(), st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    ),
    rows=st.integers(30, 300),
    clients=st.integers(1, 30),
    classes=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_every_row_goes_to_one_client(
    partition: Partition, rows: int, clients: int, classes: int, seed: int
) -> None:
    labels = np.arange(rows) % classes  # enough of each for every client that shares it
    found = deal(partition, labels, clients, seed)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(rows))
    if isinstance(partition, Random | Dirichlet) and partition.spread == 0:
        sizes = [len(part) for part in found]
        assert max(sizes) - min(sizes) <= 1
    again = deal(partition, labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("partition", [Random(), Dirichlet(0.3), Pathological(random=0.5)])
def test_the_seed_names_the_partition(partition: Partition) -> None:
    labels = labels_of(200)
    one, other = deal(partition, labels, 5, seed=1), deal(partition, labels, 5, seed=2)
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Sizes


def test_equal_sizes_differ_by_one_at_most() -> None:
    assert client_sizes(11, 4, 0.0, np.random.default_rng(0)).tolist() == [3, 3, 3, 2]


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_sizes_are_lognormal(spread: float) -> None:
    clients, rows = 2000, 2_000_000
    sizes = client_sizes(rows, clients, spread, np.random.default_rng(3))
    assert sizes.sum() == rows
    logs = np.log(sizes)
    # The mean of a lognormal is exp(m + s^2 / 2), and the sizes are scaled to a mean of 1000.
    expected = stats.norm(np.log(1000) - spread**2 / 2, spread)
    assert stats.kstest(logs, expected.cdf).pvalue > 0.01
    assert stats.kstest(logs, stats.norm(np.log(1000), 1.2 * spread).cdf).pvalue < 1e-6
    assert logs.std() == pytest.approx(spread, rel=4 / np.sqrt(2 * clients))


def test_the_smallest_client_has_a_row() -> None:
    sizes = client_sizes(1000, 400, 4.0, np.random.default_rng(0))
    assert sizes.sum() == 1000
    assert sizes.min() == 1
    assert sizes.max() > 50
    assert client_sizes(5, 5, 4.0, np.random.default_rng(0)).tolist() == [1] * 5


# Dirichlet


def naive_dirichlet(
    labels: Rows, room: list[int], priors: npt.NDArray[np.float64], chance: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The rule as it is stated, redrawing what is full or has run out; counts by client and label."""
    left = np.bincount(labels, minlength=priors.shape[1])
    found = np.zeros(priors.shape, dtype=np.int64)
    sums = priors.cumsum(1)
    while left.sum():
        client = chance.integers(len(room))
        if found[client].sum() == room[client]:
            continue
        label = sums[client].searchsorted(chance.random())
        while left[label] == 0:
            label = sums[client].searchsorted(chance.random())
        found[client, label] += 1
        left[label] -= 1
    return found


class Given(Dirichlet):
    """With priors that are known."""

    priors = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2]])

    def _log_priors(self, clients: int, labels: int, chance: np.random.Generator) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.log(self.priors) + 5.0
        return found


def test_dirichlet_deals_by_the_rule() -> None:
    # Labels run out and clients fill up at different times, so all of the rule matters for the mean counts.
    labels, trials = np.repeat([0, 1, 2], [9, 12, 9]), 1500
    chance = np.random.default_rng(5)
    ours = np.array([counts(Given().deal(labels, 3, chance), labels) for _ in range(trials)])
    room = client_sizes(len(labels), 3, 0.0, chance).tolist()
    theirs = np.array([naive_dirichlet(labels, room, Given.priors, chance) for _ in range(trials)])
    error = np.sqrt(ours.var(0) / len(ours) + theirs.var(0) / len(theirs))
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
    assert (
        np.abs(ours.mean(0) - 10 * Given.priors).max() > 1.0
    )  # far from what it would be if nothing ran out


def test_dirichlet_picks_clients_and_not_rows_at_random() -> None:
    # A client of 2 rows and one of 18: as long as both have room, each is as likely as the other to be next.
    labels = np.repeat([0, 1], [2, 18])

    class Sized(Dirichlet):
        def _log_priors(
            self, clients: int, labels: int, chance: np.random.Generator
        ) -> npt.NDArray[np.float64]:
            return np.array([[0.0, -50.0], [0.0, -50.0]])  # both want label 0, of which there are two rows

    chance = np.random.default_rng(6)
    small_first = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.data.partitions.client_sizes", lambda *_: np.array([2, 18]))
        for _ in range(2000):
            small_first.append(counts(Sized().deal(labels, 2, chance), labels)[0, 0])
    # Two fair draws: the small client has 1 of the two on average, and not 2 * 2 / 20.
    assert np.mean(small_first) == pytest.approx(1.0, abs=4 * np.sqrt(0.5 / 2000))


@pytest.mark.parametrize("alpha", [0.03, 0.3, 1.0, 100.0])
def test_priors_are_dirichlet(alpha: float) -> None:
    logs = Dirichlet(alpha)._log_priors(4000, 5, np.random.default_rng(7))
    priors = np.exp(logs - logs.max(1, keepdims=True))
    priors /= priors.sum(1, keepdims=True)
    # A coordinate of a Dirichlet is Beta(alpha, 4 alpha).
    assert stats.kstest(priors[:, 0], stats.beta(alpha, 4 * alpha).cdf).pvalue > 0.01
    assert stats.kstest(priors[:, 0], stats.beta(1.3 * alpha, 5.2 * alpha).cdf).pvalue < 1e-4


def test_a_small_alpha_gives_few_labels() -> None:
    labels = labels_of(20_000)
    held = {}
    for alpha in (1e-6, 0.03, 0.3, 10.0):
        found = counts(deal(Dirichlet(alpha), labels, 100), labels)
        held[alpha] = float(
            (found / found.sum(1, keepdims=True)).max(1).mean()
        )  # of a client's largest label
    assert held[1e-6] > held[0.03] > held[0.3] > held[10.0]
    assert held[1e-6] > 0.8  # not 1, as labels run out
    assert 0.35 < held[0.3] < 0.65  # 0.54 for an endless supply
    assert held[10.0] < 0.25
    independent = counts(deal(Random(), labels, 100), labels)
    assert float((independent / 200).max(1).mean()) < 0.2


def test_tiny_alpha_on_unbalanced_clients_and_labels_ends() -> None:
    labels = np.repeat([0, 1, 2, 7], [5000, 50, 5, 1])
    found = deal(Dirichlet(1e-6, spread=1.0), labels, 300)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(labels)))
    # A client has one label, and another one only once that ran out.
    held = (counts(found, labels) > 0).sum(1)
    assert held.mean() < 1.3
    assert held.max() <= 3


def test_the_papers_size() -> None:
    labels = labels_of(60_000)
    found = deal(Dirichlet(0.3), labels, 1100)
    assert sum(map(len, found)) == 60_000


# Pathological


def test_cifars_pairs() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    found = counts(deal(Pathological(CIFAR_PAIRS), labels, 5), labels)
    for client, pair in enumerate(CIFAR_PAIRS):
        expected = np.zeros(10)
        expected[list(pair)] = 100
        assert np.array_equal(found[client], expected)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_a_share_of_the_rows_is_dealt_at_random(share: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
    found = counts(deal(Pathological(CIFAR_PAIRS, share), labels, 5), labels)
    sizes = found.sum(1)
    assert sizes == pytest.approx(np.full(5, 2000), abs=5 * np.sqrt(2000) * (share > 0))
    own = np.array([found[client, list(pair)].sum() for client, pair in enumerate(CIFAR_PAIRS)])
    # What stays, and a fifth of what is dealt.
    assert own.sum() / 10_000 == pytest.approx(1 - share + share / 5, abs=0.02 * (share > 0))
    assert (own >= 2000 * (1 - share) - 200 * (share > 0)).all()


def test_sizes_stay_what_the_groups_made_them() -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    for share in (0.0, 0.3, 1.0):
        sizes = [len(rows) for rows in deal(Pathological(((0,), (1,), (2,)), share), labels, 3)]
        assert sizes == pytest.approx([900, 90, 10], abs=1)


def test_labels_are_shared_out_evenly_without_groups() -> None:
    labels = np.repeat(np.arange(10), 30)
    found = counts(deal(Pathological(), labels, 5), labels)
    assert [np.flatnonzero(row).tolist() for row in found] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    found = counts(deal(Pathological(), labels, 20), labels)
    assert [np.flatnonzero(row).tolist() for row in found] == [[c % 10] for c in range(20)]
    assert found.sum(1).tolist() == [15] * 20


def test_clients_that_share_a_label_share_its_rows() -> None:
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    found = counts(deal(Pathological(((0, 1), (1, 2))), labels, 2), labels)
    assert found.tolist() == [[100, 30, 0], [0, 30, 40]]


# Natural


@pytest.mark.parametrize("users", [[5, 3, 5, 9, 3, 5], ["me", "ann", "me", "you", "ann", "me"]])
def test_natural_clients(users: list[object]) -> None:
    found = deal(Natural(np.array(users)), np.zeros(6, dtype=np.int64), 3)
    assert {tuple(rows.tolist()) for rows in found} == {(0, 2, 5), (1, 4), (3,)}


def test_some_of_the_natural_clients() -> None:
    users = np.random.default_rng(0).integers(0, 50, 2000)
    whole = deal(Natural(users), users, 50)
    some = deal(Natural(users), users, 20, seed=4)
    names = [int(users[rows[0]]) for rows in some]
    assert names == sorted(set(names))
    for name, rows in zip(names, some, strict=True):
        assert np.array_equal(rows, whole[name])
    assert names != [int(users[rows[0]]) for rows in deal(Natural(users), users, 20, seed=5)]


# Names and refusals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", Random()),
        ("iid,spread=0.3", Random(spread=0.3)),
        ("dirichlet", Dirichlet()),
        ("dirichlet:0.03", Dirichlet(0.03)),
        ("dirichlet:0.3, spread=0.5", Dirichlet(0.3, 0.5)),
        ("pathological", Pathological()),
        ("pathological:0.25", Pathological(random=0.25)),
    ],
)
def test_partitions_by_name(text: str, expected: Partition) -> None:
    assert partition_named(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shards", "there is no partition 'shards': use iid, dirichlet:ALPHA"),
        ("shards:2", "there is no partition 'shards:2'"),
        ("iid:3", "iid takes no number: write iid"),
        ("dirichlet:small", "'small' in the partition 'dirichlet:small' is no number"),
        ("dirichlet:0.3,sizes=2", "there is no partition 'dirichlet:0.3,sizes=2'"),
        ("dirichlet:0.3,spread", "there is no partition 'dirichlet:0.3,spread'"),
        ("pathological:0.1,spread=1", "there is no partition 'pathological:0.1,spread=1'"),
        ("dirichlet:0", "alpha must be a positive number, not 0"),
        ("dirichlet:nan", "alpha must be a positive number, not nan"),
        ("iid,spread=-1", "spread must be a number of at least 0, not -1"),
        ("pathological:1.5", r"must be in \[0, 1\], not 1.5"),
    ],
)
def test_names_that_mean_nothing(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition_named(text)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: deal(Random(), labels_of(5), 6), "5 rows cannot be dealt to 6 clients"),
        (lambda: deal(Dirichlet(), labels_of(5), 0), "at least one each"),
        (
            lambda: deal(Pathological(CIFAR_PAIRS), labels_of(100), 4),
            "5 groups of labels for 4 clients: one each",
        ),
        (
            lambda: deal(Pathological(((0, 1), (2,))), labels_of(100, 4), 2),
            "a label is in no group",
        ),
        (lambda: deal(Pathological(((0,), (9,))), labels_of(100, 1), 2), "a client got no rows"),
        (lambda: deal(Natural(np.arange(4)), labels_of(5), 2), "one user for each of the 5 rows"),
        (lambda: deal(Natural(np.arange(5) // 2), labels_of(5), 4), "there are 3 users and not 4"),
    ],
)
def test_what_cannot_be_dealt(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()
