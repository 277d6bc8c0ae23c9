"""The figure of a run: drawn for every method, with panels for what moved and words for what did not."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.methods import METHODS
from sordino.noise.tree import Tree, noise_in_running_sum, noise_of_sums
from sordino.report import axes as scale
from sordino.report import drawn
from sordino.report.account import Account, Series, number
from sordino.report.panels import panels
from sordino.report.words import reservations, settings, spent, title
from sordino.runs import to_json

PNG = b"\x89PNG\r\n"
SUMMARY = {
    "status": "complete", "data": "made up", "n": 100, "unit": "example", "epochs": 4.0, "batch_size": 10,
    "sampling": "poisson", "steps": 40, "steps_per_epoch": 10, "batches": 40, "noise_multiplier": 1.1, "delta": 1e-5,
    "epsilon": 3.0, "accountant": "pld", "seeded": False, "method": {"name": "dp-sgd", "noise": {"kind": "Gaussian"}},
}  # fmt: skip


def lines(**courses: list[Any]) -> list[dict[str, Any]]:
    """A line for each epoch."""
    count = max(len(values) for values in courses.values())
    return [
        {"step": 10 * (i + 1), "epoch": float(i + 1), **{name: values[i] for name, values in courses.items()}}
        for i in range(count)
    ]


def titles(summary: Mapping[str, Any], history: list[dict[str, Any]], clients: Any = None) -> list[str]:
    return [panel.title for panel in panels(Account(summary, history, clients or {}))]


def as_written(run: sd.Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As it comes back from the files: numbers that JSON has not are strings."""
    return json.loads(to_json(run.summary)), json.loads(to_json(run.history))


def trained(name: str, small_model: nn.Module, toy: tuple[Tensor, Tensor], **kwargs: Any) -> sd.Run:
    private = METHODS[name]().private
    paid: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"} if private else {}
    return sd.train(
        small_model, cross_entropy, toy,
        **{"method": name, "epochs": 0.5, "batch_size": 15, "test": toy, "seed": 1, **paid, **kwargs},
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(METHODS))
def test_two_steps_of_every_method_can_be_drawn(
    name: str, small_model: nn.Module, toy: tuple[Tensor, Tensor]
) -> None:
    run = trained(name, small_model, toy)
    summary, history = as_written(run)
    shown = titles(summary, history)
    assert drawn(summary, history).startswith(PNG)
    assert shown[0].startswith("Accuracy")
    assert shown[1].startswith("Loss")
    assert shown[-1] == "Settings"
    assert ("Epsilon spent, for each example" in shown) == METHODS[name]().private


@pytest.mark.parametrize("algorithm", ["adabest", "fedavg"])
@pytest.mark.parametrize("private", [False, True])
def test_federations_can_be_drawn(
    algorithm: str, private: bool, small_model: nn.Module, toy: tuple[Tensor, Tensor]
) -> None:
    if private and algorithm == "adabest":
        pytest.skip("adabest keeps what a server must not know")
    paid: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-2, "accountant": "rdp"} if private else {}
    run = sd.federate(
        small_model, cross_entropy, toy, rounds=2, clients=6, per_round=3, algorithm=algorithm, test=toy, seed=1,
        progress=False, **paid,
    )  # fmt: skip
    summary, history = as_written(run)
    assert drawn(summary, history, {"sizes": [3, 9], "labels": [[1, 2], [9, 0]], "clients": 2}).startswith(
        PNG
    )
    assert ("Epsilon spent, for each user" in titles(summary, history)) == private
    assert title(Account(summary, history)).startswith("data: ")


def test_what_never_moved_has_no_panel_and_is_said() -> None:
    history = lines(
        rate=[0.5] * 3, threshold=[1.0] * 3, epsilon=[1.0, 2.0, 3.0], test_accuracy=[0.1, 0.5, 0.6]
    )
    assert titles(SUMMARY, history) == [
        "Accuracy (not covered)", "What epsilon bought (not covered)", "Epsilon spent, for each example", "Settings"
    ]  # fmt: skip
    said = dict(settings(Account(SUMMARY, history)))
    assert said["learning rate"] == "0.5, throughout"
    assert said["threshold"] == "1, throughout"
    assert said["noise multiplier"] == "1.1, gaussian"
    assert said["batch"] == "10 of 100, poisson"


def test_what_hardly_moved_is_said_with_both_ends() -> None:
    history = lines(rate=[0.5, 0.499, 0.498], epsilon=[1.0, 2.0, 3.0])
    assert "Learning rate" not in titles(SUMMARY, history)
    assert dict(settings(Account(SUMMARY, history)))["learning rate"] == "0.5, at the end 0.498"


def test_what_moved_has_a_panel() -> None:
    history = lines(
        rate=[0.5, 0.6, 0.9],
        threshold=[1.0, 0.5, 0.1],
        epsilon=[1.0, 2.0, 3.0],
        error=[0.1, 0.2, 0.3],
        tolerance=[1.0] * 3,
    )
    shown = titles(SUMMARY, history)
    assert {"Learning rate", "Clipping threshold", "Error of a step"} <= set(shown)
    assert {"learning rate", "threshold"}.isdisjoint(dict(settings(Account(SUMMARY, history))))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["test_loss", "test_error"], ["Error", "Loss"]),
        (["test_r2", "test_loss"], ["R2", "Loss"]),
        (["next_word_accuracy", "test_loss"], ["Next word accuracy", "Loss"]),
        (["test_next_word_accuracy", "holdout_next_word_accuracy"], ["Next word accuracy"]),
        (["test_loss", "loss"], ["Loss"]),
        (["test_accuracy", "holdout_accuracy", "test_loss"], ["Accuracy", "Loss"]),
        ([], ["On held-out rows"]),
    ],
)
def test_every_measure_is_shown_and_losses_come_last(names: list[str], shown: list[str]) -> None:
    history = lines(rate=[0.5] * 3, **{name: [0.3, 0.2, 0.1] for name in names})
    public = {**SUMMARY, "noise_multiplier": 0.0, "epsilon": "inf"}
    assert titles(public, history) == [*shown, "Settings"]
    assert drawn(public, history).startswith(PNG)


@pytest.mark.parametrize("bad", ["nan", "-inf", math.inf, None, [1]])
@pytest.mark.parametrize("everywhere", [False, True])
def test_numbers_that_are_none_do_no_harm(bad: Any, everywhere: bool) -> None:
    course = [bad] * 3 if everywhere else [1.0, bad, 2.0]
    names = ["test_accuracy", "test_loss", "rate", "threshold", "error", "tolerance", "epsilon", "cloud_norm"]
    history = lines(**dict.fromkeys(names, course), client_rates=[bad, [1, bad, 2], [1, 2, 3]])
    clients = {"rates": {"0": bad, "1": 2.0}, "sizes": [1, bad], "labels": [[1, bad], [2, 3]], "clients": bad}
    assert drawn(SUMMARY, history, clients).startswith(PNG)


def test_a_run_that_diverged_says_so() -> None:
    for name in ("loss", "rate", "threshold", "error", "tolerance", "cloud_norm"):
        run = Account(SUMMARY, lines(**{name: [1.0, "inf", "nan"]}, test_accuracy=[0.5, 0.1, 0.1]))
        assert reservations(run) == ["diverged: some figures of the training are no finite numbers"]
        assert run.series(name) == Series([1.0], [1.0], not_finite=2)


def test_an_infinite_loss_of_test_rows_is_said_and_is_no_divergence() -> None:
    run = Account(SUMMARY, lines(test_loss=[1.0, "inf", "nan"], holdout_r2=["nan"] * 3, threshold=[None] * 3))
    assert reservations(run) == [
        "test loss is no finite number at 2 of 3 evaluations", "held-out r2 is no finite number"
    ]  # fmt: skip


@pytest.mark.parametrize("history", [[], lines(rate=[0.5], epsilon=[1.0], test_accuracy=[0.5])])
@pytest.mark.parametrize("summary", [{}, {"rounds": 3}, {**SUMMARY, "method": None, "epochs": "many"}])
def test_little_is_drawn_as_well(history: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    assert drawn(summary, history).startswith(PNG)


def test_what_must_not_be_overlooked_is_said() -> None:
    summary = {**SUMMARY, "seeded": True, "caveat": "priced as the papers do", "status": "running"}
    assert reservations(Account(summary, [])) == [
        "the run is unfinished, and drawn as far as it came; more may have been released since its last line",
        "seeded: not a guarantee", "priced as the papers do",
    ]  # fmt: skip
    public = {**summary, "noise_multiplier": 0.0, "seeded": False, "caveat": None}
    assert reservations(Account(public, [])) == ["the run is unfinished, and drawn as far as it came"]
    assert reservations(Account(SUMMARY, [])) == []
    assert drawn(summary, []).startswith(PNG)


def test_epsilon_is_never_rounded_down() -> None:
    assert (
        spent(Account({**SUMMARY, "epsilon": 3.00001}, [])) == "epsilon 3.001 at delta 1e-05 for each example"
    )
    assert spent(Account({**SUMMARY, "epsilon": "inf"}, [])) == "not private: epsilon is infinite"


RUNNING = {name: value for name, value in SUMMARY.items() if name != "epsilon"} | {"status": "running"}


def test_an_unfinished_run_shows_what_is_spent_at_least() -> None:
    said = "epsilon at least 2.001 so far (at step 20 of 40) at delta 1e-05 for each example"
    known = lines(epsilon=[1.0, 2.0001])
    assert spent(Account(RUNNING, known)) == said
    assert (
        spent(Account({**RUNNING, "epsilon": 9.0}, known)) == said
    )  # what was aimed for is not what was spent
    assert spent(Account({**RUNNING, "status": "complete"}, known)) == said
    assert spent(Account(RUNNING, [*known, {"step": 21}])) == said
    assert spent(Account(RUNNING, [])) == "epsilon is not known yet: nothing is logged"
    rounds = {**RUNNING, "rounds": 7}
    assert "so far (at round 3 of 7)" in spent(Account(rounds, [{"round": 3, "epsilon": 1.0}]))


def test_the_curve_of_epsilon_ends_with_at_least_until_the_run_is_finished() -> None:
    def ends(summary: Mapping[str, Any]) -> list[str]:
        shown = panels(Account(summary, lines(epsilon=[1.0, 2.0])))
        draw = next(panel.draw for panel in shown if panel.title.startswith("Epsilon spent"))
        return [text.get_text() for text in _axes(draw).texts]

    assert ends(RUNNING) == ["at least 2.00"]
    assert ends(SUMMARY) == ["2.00"]


@pytest.mark.parametrize(
    ("status", "history", "said"),
    [
        ("running", lines(rate=[0.5]), "no evaluation yet"),
        ("complete", lines(rate=[0.5]), "no test set"),
        ("running", [], "nothing logged yet"),
    ],
)
def test_a_run_without_measures_says_why(status: str, history: list[dict[str, Any]], said: str) -> None:
    first = panels(Account({**SUMMARY, "status": status}, history))[0]
    assert [text.get_text() for text in _axes(first.draw).texts] == [said]


def _axes(draw: Callable[[Any], None]) -> Any:
    figure = Figure()
    FigureCanvasAgg(figure)  # which the figure keeps, and measures texts with
    axes = figure.add_subplot()
    draw(axes)
    return axes


@pytest.mark.parametrize(
    ("values", "at_least", "at_most"),
    [([0.90, 0.92], 0.10, 0.14), ([0.1, 0.9], 0.8, 1.04), ([0.5], 0.1, 0.14), ([0.999, 1.0], 0.05, 0.1)],
)
def test_accuracy_axes_show_the_curve_and_not_less_than_ten_points(
    values: list[float], at_least: float, at_most: float
) -> None:
    low, high = _axes(lambda axes: scale.fit(axes, values, percent=True)).get_ylim()
    assert low < min(values) <= max(values) < high
    assert at_least <= high - low <= at_most


@pytest.mark.parametrize("values", [[0.205, 0.3], [0.9, 0.92], [0.999, 1.0], [0.0], [0.1, 0.9], [0.2, 0.35]])
def test_percents_are_shown_as_they_are(values: list[float]) -> None:
    axes = _axes(lambda axes: scale.fit(axes, values, percent=True))
    axes.figure.canvas.draw()
    for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        assert float(label.get_text().replace("\N{MINUS SIGN}", "-").removesuffix(" %")) == pytest.approx(
            100 * place
        )


def test_log_axes_say_that_they_are() -> None:
    def draw(axes: Any) -> None:
        scale.name_the_y_axis(axes, "error, test rows")
        scale.fit(axes, [1.0, 1e6])

    assert _axes(draw).get_ylabel() == "error, test rows, log scale"
    assert _axes(lambda axes: scale.by_factors(axes, [1.0, 3.0])).get_ylabel() == "log scale"
    assert _axes(lambda axes: scale.by_factors(axes, [0.0, 3.0])).get_ylabel() == ""


def test_what_epsilon_bought_says_what_that_is() -> None:
    history = lines(epsilon=[1.0, 2.0], test_next_word_accuracy=[0.1, 0.2])
    shown = next(panel for panel in panels(Account(SUMMARY, history)) if "bought" in panel.title)
    assert shown.title == "What epsilon bought (not covered)"
    assert _axes(shown.draw).get_ylabel() == "next word accuracy, test rows"


@pytest.mark.parametrize("sizes", [[1, 2], [3, 4, 6], [10, 100, 200], [7, 8, 8, 19]])
def test_rows_of_clients_are_whole_numbers(sizes: list[int]) -> None:
    shown = panels(Account({"rounds": 2}, [], {"sizes": sizes}))
    axes = _axes(next(panel.draw for panel in shown if panel.title == "Sizes of the clients"))
    assert all(
        float(tick).is_integer() for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_majorticklocs()
    )
    assert sum(bar.get_height() for bar in axes.patches) == len(sizes)
    assert len({bar.get_width() for bar in axes.patches}) == 1


def test_values_at_the_ends_of_curves_do_not_lie_upon_each_other() -> None:
    def draw(axes: Any) -> None:
        axes.set_ylim(0, 1)
        close = [scale.End(Series([1.0], [y]), "red") for y in (0.5, 0.501, 0.502, 0.9)]
        scale.name_the_ends(axes, *close, scale.End(Series([], []), "red"))

    axes = _axes(draw)
    boxes = [text.get_window_extent(axes.figure.canvas.get_renderer()) for text in axes.texts]
    assert len(boxes) == 4
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_clients_that_throw_coins_are_shown_with_how_many_are_expected() -> None:
    coins = {"rounds": 3, "n": 40, "participation": {"kind": "Poisson", "rate": 0.25}}
    history = [{"round": at, "participants": many} for at, many in enumerate((9, 12, 8), 1)]
    run = Account(coins, history)
    assert dict(settings(run))["clients a round"] == "10 expected (0.25 of all), poisson"
    axes = _axes(next(panel.draw for panel in panels(run) if panel.title.startswith("Clients that")))
    assert list(axes.lines[1].get_ydata()) == [10.0, 10.0]
    assert [text.get_text() for text in axes.get_legend().texts] == ["delivered", "drawn on average"]
    fixed = {**coins, "participation": {"kind": "WithoutReplacement", "count": 10}}
    assert dict(settings(Account(fixed, history)))["clients a round"] == "10 without replacement"


def test_a_log_axis_spans_a_factor_of_four() -> None:
    low, high = _axes(lambda axes: scale.by_factors(axes, [1.0, 1.1])).get_ylim()
    assert high / low == pytest.approx(4)
    assert _axes(lambda axes: scale.by_factors(axes, [0.0, 1.0])).get_yscale() == "linear"


def test_a_loss_that_explodes_is_on_a_log_axis() -> None:
    assert _axes(lambda axes: scale.fit(axes, [1.0, 1e6])).get_yscale() == "log"
    assert _axes(lambda axes: scale.fit(axes, [1.0, 2.0])).get_yscale() == "linear"


def test_dp_ftrl_shows_trees_and_no_constant_lines(
    small_model: nn.Module, toy: tuple[Tensor, Tensor]
) -> None:
    run = trained(
        "dp-ftrl", small_model, toy, epochs=4, method=sd.dp_ftrl(restart_every=2), accountant="auto"
    )
    summary, history = as_written(run)
    assert titles(summary, history) == [
        "Accuracy (not covered)", "Loss (not covered)", "What epsilon bought (not covered)",
        "Epsilon spent, for each example", "Noise in the sum of gradients (std)", "Settings",
    ]  # fmt: skip
    assert dict(settings(Account(summary, history)))["trees"] == "a new one every 2 epochs"
    from sordino.report.panels import _restarts

    assert _restarts(Account(summary, history)) == [2.0]


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("every", [None, 1, 3])
@pytest.mark.parametrize("completion", [False, True])
def test_the_noise_of_running_sums_is_the_noise_that_plans_are_compared_by(
    efficient: bool, every: int | None, completion: bool
) -> None:
    tree = Tree(efficient, every, completion)
    stds = noise_in_running_sum(tree, 50, 10)
    cost = noise_of_sums(tree, 50, 10) / (sum(std**2 for std in stds) / 50)
    assert len(stds) == 50
    assert cost == pytest.approx(round(cost))  # a squared sensitivity, which is a whole number


def test_even_clients_are_said_and_uneven_ones_drawn() -> None:
    federated = {"data": "x", "rounds": 2, "algorithm": {"kind": "FedAvg"}, "clients": 3}
    even, uneven = {"sizes": [143, 144, 144]}, {"sizes": [10, 100, 200]}
    assert "Sizes of the clients" in titles(federated, [], uneven)
    assert "Sizes of the clients" not in titles(federated, [], even)
    assert dict(settings(Account(federated, [], even)))["rows of a client"] == "143 to 144"


def test_numbers_are_read_as_json_has_them() -> None:
    assert number("inf") == math.inf
    assert number("1.5") == 1.5
    wrong: list[Any] = [None, True, "x", [], {}, 10**400]
    assert all(math.isnan(number(each)) for each in wrong)


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy(); from sordino.report import drawn; "
        "assert drawn({}, [{'epoch': 1, 'test_accuracy': 0.5}]); "
        "assert dict.__eq__(matplotlib.rcParams, before); "
        "sys.exit('matplotlib.pyplot' in sys.modules or 'torch' in sys.modules or 'sordino.runs' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
