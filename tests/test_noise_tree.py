"""Tree noise against a stored full tree, its golden values, its variance, its price, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor

from sordino import FixedOrder, Poisson, Shuffled, Tree
from sordino.data import Separated
from sordino.noise import GaussianNoise, Streams
from sordino.noise import tree as tree_module
from sordino.noise.tree import TreeReleases, noise_in_running_sum, noise_of_sums
from sordino.privacy import tree_plan
from sordino.privacy.trees import leaves_of, pattern_sensitivity, worst_case_sensitivity


@pytest.fixture(autouse=True)
def _fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released noise is rounded to a grid; here it is compared to more digits than that."""
    monkeypatch.setattr(tree_module, "grid_for", lambda *_: 2.0**-40)


NodeNoise = Callable[[int, int, int], float]  # of (tree, height, last leaf), a standard one
Thresholds = Callable[[int], float]  # of a step


class Recorder:
    """In place of GaussianNoise: scalar noise by node, and a memory of every draw.

    The efficient tree draws the noises of the nodes that a step completes at once: r + r_below / 2 + r_below it / 4 ...
    Here that draw is put together from the nodes' own, so that it can be compared with a tree that has them all.
    """

    def __init__(self, noise: NodeNoise, efficient: bool, thresholds: Thresholds, leaves: int) -> None:
        self.noise, self.efficient, self.thresholds, self.leaves = noise, efficient, thresholds, leaves
        self.drawn: dict[tuple[int, int, int], set[float]] = {}
        self.draws = 0

    def std_of(self, tree: int, height: int, end: int) -> float:
        """That of a node by the rule: the largest threshold of its leaves. ``end`` is its last leaf with data."""
        first = (end - 1) >> height << height
        return max(self.thresholds(tree * self.leaves + leaf) for leaf in range(first, end))

    def accumulate_(self, vector: Tensor, std: float, purpose: str, step: int) -> None:
        top = int(purpose.removeprefix("noise:tree:"))
        tree, end = step >> 40, step & ((1 << 40) - 1)
        self.draws += 1
        self.drawn.setdefault((tree, top, end), set()).add(abs(std))
        path = range(top + 1) if self.efficient else [top]
        stds = [self.std_of(tree, height, end) for height in path]
        assert abs(std) == pytest.approx(
            math.sqrt(sum(4.0 ** (h - top) * s**2 for h, s in zip(path, stds, strict=True)))
        )
        parts = [2.0 ** (h - top) * s * self.noise(tree, h, end) for h, s in zip(path, stds, strict=True)]
        vector.add_(math.copysign(1.0, std) * sum(parts))


def hashed(tree: int, height: int, end: int) -> float:
    return math.sin(1 + 12.9898 * tree + 78.233 * height + 37.719 * end) * 3


def increments(
    noise: NodeNoise,
    steps: int,
    *,
    efficient: bool,
    leaves: int | None = None,
    completion: bool = False,
    thresholds: Thresholds = lambda step: 1.0,
    gradients: Callable[[int], float] = lambda step: 0.0,
    recorders: list[Recorder] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What leaves the gate at each step, and its standard deviation as the mechanism states it."""
    draw = Recorder(noise, efficient, thresholds, leaves or steps)
    if recorders is not None:
        recorders.append(draw)
    tree = Tree(efficient, None if leaves is None else 1, completion)
    releases = TreeReleases(tree, leaves or steps, leaves or steps, steps)
    state = releases.start()
    out, stds = [], []
    for step in range(steps):
        vector = torch.tensor([gradients(step)], dtype=torch.float64)
        stds.append(releases.add_(vector, draw, 1.0, thresholds(step), step, state))  # type: ignore[arg-type]
        out.append(float(vector))
    return np.array(out), np.array(stds)


def stored_tree_prefixes(noise: NodeNoise, steps: int, efficient: bool, tree: int = 0) -> list[float]:
    """The plain way: every node of the tree is stored, and each prefix is put together from its set bits."""
    value, estimate = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
    for height in range(steps.bit_length()):
        for end in range(1 << height, steps + 1, 1 << height):
            value[height, end] = noise(tree, height, end)
            below = 0.0
            if height:
                below = (estimate[height - 1, end - (1 << height - 1)] + estimate[height - 1, end]) / 2
            estimate[height, end] = value[height, end] + below
    prefixes = []
    for t in range(1, steps + 1):
        total = 0.0
        for height in range(t.bit_length()):
            if t >> height & 1:
                node = (height, t >> height << height)
                total += estimate[node] / (2 - 2.0**-height) if efficient else value[node]
        prefixes.append(total)
    return prefixes


def completed_root(noise: NodeNoise, size: int, efficient: bool, tree: int) -> float:
    """The root of a tree filled up with steps without data. A node ends with its last step that has data."""
    top = (size - 1).bit_length()
    if not efficient:
        return noise(tree, top, size)

    def estimate(height: int, first: int) -> float:
        if first >= size:
            return 0.0  # no data, and the sum is known
        own = noise(tree, height, min(first + (1 << height), size))
        if height == 0:
            return own
        half = 1 << height - 1
        return own + (estimate(height - 1, first) + estimate(height - 1, first + half)) / 2

    return estimate(top, 0) / (2 - 2.0**-top)


@pytest.mark.parametrize("efficient", [False, True])
def test_every_prefix_of_a_stream_equals_the_stored_tree(efficient: bool) -> None:
    steps = 2**12
    streamed, _ = increments(hashed, steps, efficient=efficient)
    stored = stored_tree_prefixes(hashed, steps, efficient)
    np.testing.assert_allclose(np.cumsum(streamed), stored, atol=1e-9)


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("completion", [False, True])
@pytest.mark.parametrize("leaves", [1, 2, 5, 8, 100, 1000, 1024])
def test_restarts_and_completion_equal_stored_trees(efficient: bool, completion: bool, leaves: int) -> None:
    steps = 2**12
    streamed, _ = increments(hashed, steps, efficient=efficient, leaves=leaves, completion=completion)
    expected, frozen = [], 0.0
    for number, first in enumerate(range(0, steps, leaves)):
        size = min(leaves, steps - first)
        prefixes = stored_tree_prefixes(hashed, size, efficient, tree=number)
        if completion and first + size < steps:
            prefixes[-1] = completed_root(hashed, size, efficient, number)
        expected += [frozen + p for p in prefixes]
        frozen += prefixes[-1]
    np.testing.assert_allclose(np.cumsum(streamed), expected, atol=1e-8)


def test_c1_variance_of_an_estimated_node() -> None:
    for height, variance in enumerate([1, 2 / 3, 4 / 7, 8 / 15, 16 / 31, 32 / 63]):
        assert prefix_variances(2**height, efficient=True)[-1] == pytest.approx(variance, rel=1e-12)


def prefix_variances(steps: int, efficient: bool) -> np.ndarray:
    """Exact: the noise of every prefix as a vector over nodes, one of which is drawn as 1 at a time."""
    nodes: dict[tuple[int, int, int], int] = {}
    increments(
        lambda *node: float(nodes.setdefault(node, len(nodes))), steps, efficient=efficient
    )  # numbers the nodes
    variances = np.zeros(steps)
    for chosen in nodes:
        one, _ = increments(lambda *node, c=chosen: float(node == c), steps, efficient=efficient)
        variances += np.cumsum(one) ** 2
    return variances


def test_c2_variance_of_prefixes() -> None:
    vanilla, efficient = prefix_variances(15, False), prefix_variances(15, True)
    for t, plain, reduced in [(3, 2, 1.666667), (7, 3, 2.238095), (8, 1, 0.533333), (15, 4, 2.771429)]:
        assert vanilla[t - 1] == pytest.approx(plain)
        assert efficient[t - 1] == pytest.approx(reduced, abs=1e-6)


@pytest.mark.parametrize(("efficient", "mean"), [(False, 5.0009765625), (True, 2.9019180878)])
def test_c3_mean_variance_over_1024_steps(efficient: bool, mean: float) -> None:
    # Node variances are C1's, and a prefix is the sum of independent nodes: one for each set bit.
    node = [prefix_variances(2**h, efficient)[-1] for h in range(5)]
    node += [1 / (2 - 2.0**-h) if efficient else 1.0 for h in range(5, 11)]
    total = sum(node[h] for t in range(1, 1025) for h in range(11) if t >> h & 1)
    assert total / 1024 == pytest.approx(mean, rel=1e-9)


def test_c4_all_node_noises_one() -> None:
    vanilla, _ = increments(lambda *node: 1.0, 64, efficient=False)
    np.testing.assert_allclose(np.cumsum(vanilla), [t.bit_count() for t in range(1, 65)])
    efficient, _ = increments(lambda *node: 1.0, 8, efficient=True)
    golden = [1, 4 / 3, 7 / 3, 12 / 7, 19 / 7, 64 / 21, 85 / 21, 32 / 15]
    np.testing.assert_allclose(np.cumsum(efficient), golden)


@pytest.mark.parametrize("efficient", [False, True])
def test_c5_without_noise_prefixes_are_exact(efficient: bool) -> None:
    released, _ = increments(lambda *node: 0.0, 8, efficient=efficient, gradients=lambda step: step + 1.0)
    np.testing.assert_allclose(np.cumsum(released), [1, 3, 6, 10, 15, 21, 28, 36])


@pytest.mark.parametrize("efficient", [False, True])
def test_the_stated_std_is_that_of_the_increment(efficient: bool) -> None:
    steps, leaves = 30, 11
    settings: Any = {
        "efficient": efficient,
        "leaves": leaves,
        "completion": True,
        "thresholds": lambda s: 1 + s * 7 % 5,
    }
    nodes: set[tuple[int, int, int]] = set()

    def collect(*node: int) -> float:
        nodes.add(node)  # type: ignore[arg-type]
        return 0.0

    _, stated = increments(collect, steps, **settings)
    exact = np.zeros(steps)
    for chosen in nodes:
        one, _ = increments(lambda *node, c=chosen: float(node == c), steps, **settings)
        exact += one**2
    np.testing.assert_allclose(stated, np.sqrt(exact))


def gaussian_increments(seed: int, trees: int, steps: int, efficient: bool, scale: float = 1.0) -> Tensor:
    """``trees`` independent trees at once, as coordinates of one vector: prefix noise [steps, trees]."""
    draw = GaussianNoise(Streams.from_seed(seed))
    releases = TreeReleases(Tree(efficient, None), steps, steps, steps)
    state, rows = releases.start(), []
    for step in range(steps):
        rows.append(torch.zeros(trees))
        releases.add_(rows[-1], draw, scale, 1.0, step, state)
    return torch.stack(rows).cumsum(0)


@pytest.mark.parametrize("efficient", [False, True])
def test_variance_over_2000_trees_is_the_theory_s_and_no_other(efficient: bool) -> None:
    trees, steps = 2000, 64
    shares = [1 / (2 - 2.0**-h) if efficient else 1.0 for h in range(7)]
    theory = np.array([sum(shares[h] for h in range(7) if t >> h & 1) for t in range(1, steps + 1)])

    def within(scale: float) -> np.ndarray:
        prefixes = gaussian_increments(3, trees, steps, efficient, scale).numpy()
        low, high = stats.chi2.ppf([5e-6, 1 - 5e-6], trees)  # 64 steps: one false alarm in 1500 seeds
        squares = (prefixes**2).sum(1)
        found: np.ndarray = (squares / theory > low) & (squares / theory < high)
        return found

    assert within(1.0).all()
    assert not within(2 / 3).any()
    assert not within(3 / 2).any()


@pytest.mark.parametrize("efficient", [False, True])
def test_prefix_noise_is_gaussian(efficient: bool) -> None:
    prefix = gaussian_increments(4, 20_000, 7, efficient)[-1].numpy()
    std = math.sqrt(2.238095238 if efficient else 3)
    assert stats.kstest(prefix / std, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * prefix / std, "norm").pvalue < 1e-9


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("leaves", [None, 60])
def test_no_node_is_ever_drawn_with_two_stds_and_draws_are_few(efficient: bool, leaves: int | None) -> None:
    steps, recorders = 1000, list[Recorder]()
    increments(
        hashed,
        steps,
        efficient=efficient,
        leaves=leaves,
        completion=True,
        thresholds=lambda step: 0.1 + math.sin(step) ** 2,
        recorders=recorders,
    )
    (draw,) = recorders
    assert all(len(stds) == 1 for stds in draw.drawn.values())
    assert draw.draws == steps if efficient else draw.draws <= 2.2 * steps


@pytest.mark.parametrize("efficient", [False, True])
def test_a_node_has_the_largest_threshold_of_its_leaves(
    efficient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder checks each draw against that rule; here that it would notice another one."""

    def threshold(step: int) -> float:
        return 1.0 + (step * 37 % 11)

    increments(hashed, 64, efficient=efficient, thresholds=threshold)
    monkeypatch.setattr(tree_module, "max", min, raising=False)
    with pytest.raises(AssertionError):
        increments(hashed, 64, efficient=efficient, thresholds=threshold)


def test_sensitivity_with_moving_thresholds_is_within_what_is_charged() -> None:
    """Numerically: scale each node by its noise, and let the worst unit of every batch contribute its all."""
    generator = np.random.default_rng(1)
    broken = 0
    for _ in range(20):
        per_epoch, epochs = int(generator.integers(1, 7)), int(generator.integers(1, 6))
        steps = per_epoch * epochs
        thresholds = np.exp(generator.normal(size=steps))
        recorders: list[Recorder] = []
        of_step = thresholds.__getitem__
        increments(hashed, steps, efficient=True, thresholds=of_step, recorders=recorders)
        releases = Tree(restart_every=None).over(FixedOrder(1), per_epoch, steps)
        _, event = releases.charge(0, 1.0, ())
        assert isinstance(event, GaussianDpEvent)
        nodes = [(h, end) for h in range(steps.bit_length()) for end in range(1 << h, steps + 1, 1 << h)]
        worst = naive = 0.0
        for j in range(per_epoch):
            moved = np.zeros(steps)
            moved[j::per_epoch] = thresholds[j::per_epoch]  # norms of its contributions, all in one direction
            sums = {(h, end): moved[end - (1 << h) : end].sum() for h, end in nodes}
            worst = max(worst, sum((sums[h, e] / recorders[0].std_of(0, h, e)) ** 2 for h, e in nodes))
            naive = max(naive, sum((sums[h, e] / thresholds[e - 1]) ** 2 for h, e in nodes))
        assert worst <= event.noise_multiplier**-2 * (1 + 1e-12)
        broken += naive > event.noise_multiplier**-2
    assert broken > 10  # had a node the threshold of its last leaf, as a naive tree would have it


def test_memory_is_logarithmic() -> None:
    steps = 1000
    releases = TreeReleases(Tree(True, None), steps, steps, steps)
    draw, state = GaussianNoise(Streams.from_seed(1)), releases.start()
    most = 0
    for step in range(steps):
        releases.add_(torch.zeros(3), draw, 1.0, 1.0, step, state)
        most = max(most, len(state["values"]) + len(releases._spare))
    assert most <= math.log2(steps) + 2
    vanilla = TreeReleases(Tree(False, None), steps, steps, steps)
    state = vanilla.start()
    for step in range(steps):
        vanilla.add_(torch.zeros(3), draw, 1.0, 1.0, step, state)
        assert not state["values"]


# The price --------------------------------------------------------------------------------------------------


def test_trees_are_charged_whole_when_opened_and_the_last_for_what_it_holds() -> None:
    releases = Tree(restart_every=2, completion=True).over(FixedOrder(10), 65, 6 * 5 + 3)
    charges = [releases.charge(step, 3.0, ()) for step in range(33)]
    assert [key for key, _ in charges] == [f"tree:{step // 12}" for step in range(33)]
    # 12 steps, 6 to an epoch, filled up to 16: two visits in one root.
    squares = {key: 9 / event.noise_multiplier**2 for key, event in charges}
    assert squares["tree:0"] == squares["tree:1"] == pytest.approx(max(sens2(j, 12, 6, 16) for j in range(6)))
    assert squares["tree:2"] == pytest.approx(max(sens2(j, 9, 6, 9) for j in range(6)))
    with pytest.raises(ValueError, match="planned, and paid, for 33 steps"):
        releases.charge(33, 3.0, ())
    with pytest.raises(ValueError, match="planned, and paid, for 33 steps"):
        releases.cost(34, 3.0, ())


def sens2(j: int, steps: int, per_epoch: int, size: int) -> int:
    places = range(j, steps, per_epoch)
    return sum(
        sum(first <= p < first + (1 << h) for p in places) ** 2
        for h in range(size.bit_length())
        for first in range(0, size - (1 << h) + 1, 1 << h)
    )


def test_the_cost_of_steps_is_that_of_the_trees_they_open() -> None:
    releases = Tree(restart_every=1).over(Shuffled(10), 60, 15)
    first, last = (releases.charge(step, 2.0, ())[1] for step in (0, 12))
    assert first != last
    assert releases.cost(0, 2.0, ()) == type(releases.cost(0, 2.0, ()))()
    assert releases.cost(1, 2.0, ()) == releases.cost(6, 2.0, ()) == first
    assert releases.cost(12, 2.0, ()).count == 2
    assert releases.cost(15, 2.0, ()).events[-1] == last
    assert isinstance(releases.charge(0, 0.0, ())[1], NonPrivateDpEvent)


def test_probes_are_releases_of_their_own() -> None:
    z, probe = 4.0, 25.0
    releases = Tree(restart_every=3).over(FixedOrder(10), 60, 18)
    alone = releases.charge(0, z, ())[1].noise_multiplier
    both = releases.charge(0, z, (probe,))[1].noise_multiplier
    assert both**-2 == pytest.approx(alone**-2 + 3 * probe**-2)  # three visits
    assert releases.split(z, (probe,)) == z


@pytest.mark.parametrize(
    ("sampling", "every", "steps", "message"),
    [
        (Poisson(0.1), 1, 10, "dealt in an order"),
        (Shuffled(10, assume_poisson=True), 1, 10, "dealt in an order"),
        (Shuffled(10), 2, 10, "shuffle when a tree begins"),
        (Shuffled(10, every=3), 2, 100, "shuffle when a tree begins"),
        (Shuffled(10), None, 100, "shuffle when a tree begins"),
        (FixedOrder(10), None, None, "how many steps"),
    ],
)
def test_what_has_no_price_is_refused(sampling, every, steps, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        Tree(restart_every=every).over(sampling, 100, steps)


def test_orders_that_outlast_a_tree_are_fine() -> None:
    for sampling in (FixedOrder(10), Shuffled(10, every=None), Shuffled(10, every=4)):
        Tree(restart_every=2).over(sampling, 100, 1000)


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_restarts_come_after_whole_epochs(every: float) -> None:
    with pytest.raises(ValueError, match="whole number of epochs"):
        Tree(restart_every=every)  # type: ignore[arg-type]


def test_a_tree_with_a_lost_step_is_not_continued() -> None:
    releases = TreeReleases(Tree(), 8, 8, 8)
    state, draw = releases.start(), GaussianNoise(Streams.from_seed(1))
    releases.add_(torch.zeros(3), draw, 1.0, 1.0, 0, state)
    with pytest.raises(RuntimeError, match="a step of this tree failed"):
        releases.add_(torch.zeros(3), draw, 1.0, 1.0, 2, state)


def test_planned_trees_have_the_least_noise_of_all_choices() -> None:
    for steps, per_epoch in [(4800, 240), (610, 61), (330, 11), (7, 10), (1, 1)]:
        chosen = Tree().planned(steps, per_epoch)
        epochs = -(-steps // per_epoch)
        every = [Tree(restart_every=None), *(Tree(restart_every=r) for r in range(1, epochs))]
        least = min(noise_of_sums(tree, steps, per_epoch) for tree in every)
        assert noise_of_sums(chosen, steps, per_epoch) <= 1.05 * least  # large intervals are tried in steps
        assert Tree().over(FixedOrder(1), per_epoch, steps).cost(steps, 1.0, ()) == chosen.over(
            FixedOrder(1), per_epoch, steps
        ).cost(steps, 1.0, ())


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("completion", [False, True])
def test_the_planned_noise_is_that_of_the_stream(efficient: bool, completion: bool) -> None:
    """Mean variance of the running sum, from the nodes one at a time, times what the trees cost."""
    steps, leaves = 23, 7
    nodes: set[tuple[int, int, int]] = set()
    settings: Any = {"efficient": efficient, "leaves": leaves, "completion": completion}

    def collect(*node: int) -> float:
        nodes.add(node)  # type: ignore[arg-type]
        return 0.0

    increments(collect, steps, **settings)
    variances = np.zeros(steps)
    for chosen in nodes:
        one, _ = increments(lambda *node, c=chosen: float(node == c), steps, **settings)
        variances += np.cumsum(one) ** 2
    tree = Tree(efficient, 1, completion)
    full, last = (8 if completion else 7), 2
    cost = 3 * (4 if full == 8 else 3) + last
    assert noise_of_sums(tree, steps, leaves) == pytest.approx(cost * variances.mean())


@pytest.mark.parametrize("completion", [False, True])
@pytest.mark.parametrize("every", [None, 1, 2, 5])
@pytest.mark.parametrize("steps", [1, 6, 30, 33])
def test_the_gate_pays_what_the_budget_says(every: int | None, completion: bool, steps: int) -> None:
    paid = (
        Tree(restart_every=every, completion=completion).over(FixedOrder(10), 60, steps).cost(steps, 3.0, ())
    )
    told = tree_plan(3.0, steps, 6, restart_every=every, completion=completion and every is not None)
    assert paid == told


# Units that sit out, and come in no order that is known -----------------------------------------------------


@pytest.mark.parametrize("completion", [False, True])
@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize(("separation", "steps"), [(1, 12), (2, 11), (2, 13), (4, 23), (3, 2)])
def test_separated_units_are_priced_for_every_pattern_they_can_have(
    separation: int, steps: int, every: int | None, completion: bool
) -> None:
    z, period = 3.0, separation + 1
    releases = Tree(restart_every=every, completion=completion).over(
        Separated(1, separation), 3 * period, steps
    )
    size = steps if every is None else every * period
    for first in range(0, steps, size):
        length = min(size, steps - first)
        completed = completion and first + length < steps
        key, event = releases.charge(first, z, ())
        assert key == f"tree:{first // size}"
        squares = (z / event.noise_multiplier) ** 2
        assert squares == pytest.approx(
            worst_case_sensitivity(length, min_separation=separation, completed=completed)
        )
        worst = 0
        for group in range(period):
            turns = [step - first for step in range(first, first + length) if step % period == group]
            subsets = chain.from_iterable(combinations(turns, k) for k in range(len(turns) + 1))
            worst = max(
                worst, *(pattern_sensitivity(places, leaves_of(length, completed)) for places in subsets)
            )
        assert worst <= squares * (1 + 1e-12)
    total = releases.cost(steps, z, ())
    assert isinstance(total, GaussianDpEvent) == (size >= steps)


def test_units_that_sit_out_cost_more_than_an_order_that_is_known() -> None:
    """Since each may come at any of the steps that its limit leaves, the worst pattern is not a regular one."""
    separated = Tree(restart_every=None).over(Separated(1, 2), 30, 24).charge(0, 1.0, ())[1]
    in_order = Tree(restart_every=None).over(FixedOrder(10), 30, 24).charge(0, 1.0, ())[1]
    assert separated.noise_multiplier**-2 == pytest.approx(worst_case_sensitivity(24, min_separation=2))
    assert separated.noise_multiplier < in_order.noise_multiplier


@pytest.mark.parametrize(("separation", "steps", "visits"), [(2, 12, 4), (2, 13, 5), (2, 15, 5), (9, 10, 1)])
def test_separated_units_pay_for_a_probe_at_each_visit(separation: int, steps: int, visits: int) -> None:
    z, probe = 4.0, 25.0
    sampling = Separated(2, separation)
    releases = Tree(restart_every=None).over(sampling, 100, steps)
    alone = releases.charge(0, z, ())[1].noise_multiplier
    both = releases.charge(0, z, (probe,))[1].noise_multiplier
    assert both**-2 == pytest.approx(alone**-2 + visits * probe**-2)
    assert visits == max(
        sum(step % sampling.period == g for step in range(steps)) for g in range(sampling.period)
    )
    said = releases.explanation(z, (probe,))
    assert said is not None
    assert f"takes part {visits} times at most, in whatever order" in said


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("restart_every", [None, 1, 2])
@pytest.mark.parametrize("completion", [False, True])
def test_what_gathers_is_the_noise_of_the_last_running_sum(
    efficient: bool, restart_every: int | None, completion: bool
) -> None:
    """As computed for each step, and as it is added."""
    tree, steps, size = Tree(efficient, restart_every, completion), 23, 20_000
    sampling = tree.dealt(Shuffled(10), 60)  # six steps to an epoch
    releases = tree.over(sampling, 60, steps)
    stds = noise_in_running_sum(tree, steps, 6)
    assert releases.gathered(steps) == stds[-1]
    state, draw, total = releases.start(), GaussianNoise(Streams.from_seed(4)), torch.zeros(size).double()
    for step in range(steps):
        releases.add_(total, draw, 1.0, 1.0, step, state)
    assert float(total.std()) == pytest.approx(releases.gathered(steps), rel=0.03)
