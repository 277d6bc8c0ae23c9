"""`sordino budget`: one JSON object, honest numbers, errors that say what to do."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sordino.cli.budget import app, epochs_of
from sordino.privacy import gaussian, price, repeat


def run(*args: str | float) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ask(*args: str | float) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)  # exactly one object
    return answer


POISSON = ("--sampling-rate", 0.04, "--delta", 1e-5)


def test_epsilon_golden() -> None:
    answer = ask("epsilon", "--noise-multiplier", 1.5, "--steps", 2250, "--accountant", "rdp", *POISSON)
    assert answer["epsilon"] == pytest.approx(7.3291, abs=5e-5)
    assert answer["accountant"] == "rdp"
    assert answer["conversion"] == "improved"
    assert answer["mechanism"] == "gaussian"
    assert (answer["sampling"], answer["sampling_rate"]) == ("poisson", 0.04)
    assert answer["relation"] == "zero-out (REPLACE_SPECIAL)"
    assert answer["zcdp_rho"] is None
    assert answer["inputs"]["steps"] == 2250
    assert "public" in answer["unit"]


def test_noise_and_steps_invert_epsilon() -> None:
    answer = ask("noise", "--epsilon", 7.3292, "--steps", 2250, "--accountant", "rdp", *POISSON)
    assert answer["noise_multiplier"] == pytest.approx(1.5, abs=1e-3)
    assert answer["epsilon"] <= 7.3292 == answer["inputs"]["epsilon"]
    answer = ask("steps", "--epsilon", 7.3292, "--noise-multiplier", 1.5, "--accountant", "rdp", *POISSON)
    assert answer["steps"] == 2250


def test_no_sampling_has_zcdp_and_gdp() -> None:
    answer = ask("epsilon", "--noise-multiplier", 10, "--steps", 4, "--delta", 1e-5)
    assert answer["sampling"] == "none"
    assert answer["gdp_mu"] == pytest.approx(0.2)
    assert answer["zcdp_rho"] == pytest.approx(0.02)


def test_no_noise_is_infinite() -> None:
    assert ask("epsilon", "--noise-multiplier", 0, "--steps", 4, "--delta", 1e-5)["epsilon"] == "inf"
    result = run("epsilon", "--noise-multiplier", 0, "--steps", 4, "--delta", 1e-5)
    assert "inf (not private)" in result.stdout


def test_disjoint_batches_are_priced_without_amplification() -> None:
    answer = ask("epsilon", "--noise-multiplier", 5, "--steps", 60, "--sampling", "disjoint", *POISSON)
    assert answer["epsilon"] == price(repeat(gaussian(5.0), 3), 1e-5).epsilon
    assert answer["amplification"] is False
    most = ask("steps", "--noise-multiplier", 5, "--epsilon", 3, "--sampling", "disjoint", *POISSON)
    assert most["steps"] % 25 == 0
    assert most["epsilon"] <= 3


@pytest.mark.parametrize(
    ("steps", "rate", "epochs"),
    [(1, 0.04, 1), (25, 0.04, 1), (26, 0.04, 2), (1170, 512 / 60000, 10), (10, 0.3, 4)],
)
def test_epochs(steps: int, rate: float, epochs: int) -> None:
    assert epochs_of(steps, rate) == epochs
    assert epochs >= math.ceil(steps * rate - 1e-9)


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "z", "printed", "delta"),
    [
        (60_000, 250, 20, 5.48, 3.75, 1e-5),
        (60_000, 1000, 80, 27.68, 1.34, 1e-5),
        (50_000, 500, 100, 7.15, 6.99, 1e-5),
        (50_000, 2000, 400, 5.4, 23.42, 1e-5),
        (697_932, 500, 50, 3.86, 10.53, 1e-6),
        (697_932, 2000, 200, 14.5, 5.08, 1e-6),
    ],
)
def test_unamplified_sgd_is_one_release_per_epoch(
    rows: int, batch: int, epochs: int, z: float, printed: float, delta: float
) -> None:
    """Table 6 of Kairouz et al. (2021)."""
    steps = epochs * (rows // batch)
    plan = ("--noise-multiplier", z, "--steps", steps, "--sampling-rate", batch / rows, "--delta", delta)
    answer = ask("epsilon", *plan, "--sampling", "disjoint", "--accountant", "rdp")
    assert answer["epsilon"] == pytest.approx(printed, abs=5.1e-3)
    assert answer["zcdp_rho"] == pytest.approx(epochs / (2 * z**2))


TREE = ("--mechanism", "tree", "--steps-per-epoch", 100, "--epochs", 100, "--delta", 1e-5)
README = (*TREE, "--restart-every", 20, "--completion", "--accountant", "rdp")


def test_trees() -> None:
    answer = ask("epsilon", *README, "--noise-multiplier", 46.3)
    assert answer["epsilon"] == pytest.approx(6.92224, abs=3e-5)
    assert (answer["mechanism"], answer["order"], answer["trees"]) == ("tree", "fixed", 5)
    assert answer["squared_sensitivity"] == 4 * 926 + 425
    assert answer["zcdp_rho"] == pytest.approx(4129 / (2 * 46.3**2))
    assert (answer["sampling"], answer["sampling_rate"], answer["amplification"]) == (None, None, False)
    assert "note" not in answer
    asked = answer["inputs"]
    assert (asked["steps_per_epoch"], asked["epochs"], asked["restart_every"]) == (100, 100, 20)
    assert (asked["completion"], asked["order"], asked["noise_multiplier"]) == (True, "fixed", 46.3)

    again = ask("noise", *README, "--epsilon", answer["epsilon"])
    assert again["noise_multiplier"] == pytest.approx(46.3, rel=2e-4)
    assert again["epsilon"] <= answer["epsilon"] == again["inputs"]["epsilon"]
    assert ask("epsilon", *TREE, "--noise-multiplier", 0)["epsilon"] == "inf"


def test_trees_add_up() -> None:
    one = ask("epsilon", *TREE, "--noise-multiplier", 50)
    assert (one["trees"], one["squared_sensitivity"]) == (1, 14349)
    each = ask("epsilon", *TREE, "--noise-multiplier", 50, "--restart-every", 1)
    assert (each["trees"], each["squared_sensitivity"]) == (100, 700)
    uneven = ask("epsilon", *TREE, "--noise-multiplier", 50, "--restart-every", 60)
    assert uneven["trees"] == 2
    assert each["epsilon"] < uneven["epsilon"] < one["epsilon"]


def test_trees_in_unknown_order() -> None:
    gboard = ("--mechanism", "tree", "--steps-per-epoch", 2000, "--epochs", 1, "--order", "unknown")
    limits = ("--min-separation", 313, "--max-participation", 6)
    answer = ask(
        "epsilon", *gboard, *limits, "--delta", 1e-10, "--noise-multiplier", 7, "--accountant", "rdp"
    )
    assert answer["epsilon"] == pytest.approx(8.90, abs=5e-3)
    assert (answer["order"], answer["squared_sensitivity"]) == ("unknown", 79)
    assert answer["inputs"]["max_participation"] == 6
    result = run("epsilon", *TREE, *gboard[-2:], *limits, "--restart-every", 50, "--noise-multiplier", 7)
    assert "at least 313 steps between two participations" in result.stdout
    assert "each tree priced as if all were in it" in result.stdout


def test_as_printed_is_marked_on_every_line() -> None:
    flags = ("--mechanism", "tree", "--steps-per-epoch", 240, "--epochs", 20, "--as-printed", "--delta", 1e-5)
    answer = ask("epsilon", *flags, "--noise-multiplier", 4, "--accountant", "rdp")
    assert answer["epsilon"] == pytest.approx(26.2059209503)
    assert answer["note"] == "as printed, not a guarantee"
    for command in (("epsilon", "--noise-multiplier", 4), ("noise", "--epsilon", 26)):
        lines = run(*command, *flags).stdout.splitlines()
        assert len(lines) >= 5
        assert all(line.endswith("(as printed, not a guarantee)") for line in lines)


def test_people_are_told_about_trees() -> None:
    text = run("epsilon", *README, "--noise-multiplier", 46.3).stdout
    assert "epsilon 6.9223 at delta 1e-05" in text
    assert "100 epochs of 100 steps, 5 trees, a new one every 20 epochs, all but the last completed" in text
    assert "squared sensitivity 4129" in text
    assert "the same order every epoch until a restart" in text
    assert "guarantee" not in text


BANDED = ("--mechanism", "banded", "--steps", 2000, "--sampling-rate", 0.005, "--delta", 1e-5)


def test_bands() -> None:
    eight = ask("epsilon", *BANDED, "--bands", 8, "--noise-multiplier", 1, "--accountant", "rdp")
    plain = ("--steps", 250, "--sampling-rate", 0.04, "--delta", 1e-5, "--accountant", "rdp")
    assert eight["epsilon"] == ask("epsilon", *plain, "--noise-multiplier", 1)["epsilon"]
    assert (eight["mechanism"], eight["bands"], eight["participations"]) == ("banded", 8, 250)
    assert (eight["rate_of_group"], eight["amplification"]) == (0.04, True)
    one = ask("epsilon", *BANDED, "--bands", 1, "--noise-multiplier", 1, "--accountant", "rdp")
    usual = ("--steps", 2000, "--sampling-rate", 0.005, "--delta", 1e-5, "--accountant", "rdp")
    assert one["epsilon"] == ask("epsilon", *usual, "--noise-multiplier", 1)["epsilon"]


def test_bands_are_chosen_for_a_budget() -> None:
    amplified = ask("noise", *BANDED, "--epsilon", 3, "--accountant", "rdp")
    assert (amplified["bands"], amplified["inputs"]["bands"]) == (16, "auto")
    assert amplified["noise_multiplier"] == pytest.approx(1.6415, rel=1e-3)
    in_order = ask("noise", *BANDED, "--epsilon", 3, "--sampling", "disjoint", "--bands", "auto")
    assert (in_order["bands"], in_order["participations"], in_order["amplification"]) == (200, 10, False)
    assert in_order["zcdp_rho"] == pytest.approx(10 / (2 * in_order["noise_multiplier"] ** 2))
    text = run("noise", *BANDED, "--epsilon", 3, "--accountant", "rdp").stdout
    assert (
        "related over 16 steps; poisson batches, rate 0.005: 16 groups that take turns, each at rate 0.08"
        in text
    )
    assert "a unit takes part once in 16 steps at most, 125 times in 2000" in text


def test_buffers() -> None:
    plan = ("--mechanism", "buffered", "--steps", 2000, "--sampling-rate", 0.005, "--sampling", "disjoint")
    found = ask("noise", *plan, "--delta", 1e-5, "--epsilon", 3)
    assert (found["buffers"], found["participations"], found["amplification"]) == (2, 10, False)
    assert found["zcdp_rho"] == pytest.approx(
        found["sensitivity"] ** 2 / (2 * found["noise_multiplier"] ** 2)
    )
    one = ask("noise", "--steps", 1, "--delta", 1e-5, "--epsilon", 3)
    assert found["noise_multiplier"] == pytest.approx(
        one["noise_multiplier"] * found["sensitivity"], rel=1e-4
    )
    text = run("noise", *plan, "--delta", 1e-5, "--epsilon", 3).stdout
    assert "buffered noise, 2 decaying sums" in text
    assert "once in 200 steps, 10 times in 2000: sensitivity 6.3" in text


def test_people_get_a_few_lines_with_epsilon_rounded_up() -> None:
    result = run("epsilon", "--noise-multiplier", 1.5, "--steps", 2250, "--accountant", "rdp", *POISSON)
    assert result.exit_code == 0
    assert "epsilon 7.3292 at delta 1e-05" in result.stdout
    assert "poisson batches, rate 0.04" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("epsilon", "--noise-multiplier", 1, "--steps", 5), "--delta is missing"),
        (("epsilon", "--steps", 5, "--delta", 1e-5), "--noise-multiplier is missing"),
        (("epsilon", "--noise-multiplier", 1, "--delta", 1e-5), "--steps is missing"),
        (("epsilon", "--noise-multiplier", 1, "--steps", 0, "--delta", 1e-5), "--steps must be at least 1"),
        (("epsilon", "--noise-multiplier", -1, "--steps", 5, "--delta", 1e-5), "noise_multiplier must be"),
        (("epsilon", "--noise-multiplier", 1, "--steps", 5, "--delta", 2), "delta must lie"),
        (("noise", "--epsilon", 0, "--steps", 5, "--delta", 1e-5), "epsilon must be"),
        (("noise", "--epsilon", 1, "--steps", 5, "--delta", 1e-5, "--sampling-rate", 0), "--sampling-rate"),
        (
            ("steps", "--epsilon", 1, "--noise-multiplier", 1, "--delta", 1e-5, "--sampling-rate", 1.5),
            "--sampling-rate",
        ),
        (("steps", "--epsilon", 0.1, "--noise-multiplier", 1, "--delta", 1e-5), "not even one step"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--steps", 5), "--steps is not for --mechanism tree"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--sampling-rate", 1), "--sampling-rate is not for"),
        (("noise", *TREE, "--epsilon", 1, "--sampling", "disjoint"), "--sampling is not for"),
        (
            ("epsilon", "--noise-multiplier", 1, "--steps", 5, "--epochs", 5),
            "--epochs needs --mechanism tree",
        ),
        (
            ("noise", "--epsilon", 1, "--steps", 5, "--delta", 1e-5, "--min-separation", 0),
            "--min-separation needs --mechanism",
        ),
        (
            ("noise", "--epsilon", 1, "--steps", 5, "--delta", 1e-5, "--as-printed"),
            "--as-printed needs --mechanism tree",
        ),
        (
            ("noise", "--epsilon", 1, "--steps", 5, "--delta", 1e-5, "--bands", 4),
            "--bands needs --mechanism banded",
        ),
        (("epsilon", *BANDED, "--noise-multiplier", 1), "--bands auto follows from a budget"),
        (("epsilon", *BANDED, "--noise-multiplier", 1, "--bands", "few"), "--bands must be a whole number"),
        (("epsilon", *BANDED, "--noise-multiplier", 1, "--bands", 0), "--bands must be a whole number"),
        (("epsilon", *BANDED, "--noise-multiplier", 1, "--bands", 201), "use at most 200 bands"),
        (("epsilon", *BANDED, "--noise-multiplier", 1, "--epochs", 2), "--epochs needs --mechanism tree"),
        (("steps", *BANDED[:2], "--epsilon", 1, "--delta", 1e-5), "cannot count the steps of bands"),
        (
            ("steps", "--mechanism", "buffered", "--epsilon", 1, "--delta", 1e-5),
            "cannot count the steps of buffers",
        ),
        (
            ("noise", "--mechanism", "buffered", *BANDED[2:], "--epsilon", 1),
            "give --sampling disjoint, or use --mechanism banded",
        ),
        (("epsilon", *TREE[:4], "--noise-multiplier", 1), "--epochs is missing"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--epochs", 0), "--epochs must be positive"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--restart-every", 0), "--restart-every must be"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--restart-every", "often"), "--restart-every must be"),
        (("epsilon", *TREE, "--noise-multiplier", -3), "not -3"),
        (("epsilon", *TREE, "--noise-multiplier", 1e300), "not 1e+300"),
        (("epsilon", *TREE, "--noise-multiplier", 1e-300), "not 1e-300"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--completion"), "--completion needs --restart-every"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--order", "unknown"), "--min-separation is missing"),
        (("epsilon", *TREE, "--noise-multiplier", 1, "--max-participation", 3), "is for --order unknown"),
        (("epsilon", *README, "--noise-multiplier", 1, "--as-printed"), "--as-printed has no completion"),
        (
            ("steps", *TREE[:2], "--epsilon", 1, "--delta", 1e-5),
            "budget steps cannot count the steps of trees",
        ),
    ],
)
def test_bad_input_is_a_one_line_value_error(args: tuple[str | float, ...], message: str) -> None:
    result = run(*args)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_unknown_choices_exit_with_2() -> None:
    result = run("epsilon", "--noise-multiplier", 1, "--steps", 5, "--delta", 1e-5, "--accountant", "best")
    assert result.exit_code == 2


def test_importing_the_command_does_not_load_the_accountants() -> None:
    code = (
        "import sys, sordino.cli.budget; sys.exit('scipy' in sys.modules or 'dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_tree_plan_as_train_makes_it() -> None:
    """Whole epochs or not, restarts as planned: the numbers are those of the gate."""
    flags = ("--mechanism", "tree", "--noise-multiplier", 9, "--steps-per-epoch", 240, "--delta", 1e-5)
    planned = ask("epsilon", *flags, "--epochs", 20, "--restart-every", "auto", "--completion")
    assert planned["inputs"]["restart_every"] == 2
    assert planned == ask("epsilon", *flags, "--epochs", 20, "--restart-every", 2, "--completion")
    part = ask("epsilon", *flags, "--epochs", 2.5, "--restart-every", 1)
    assert (part["trees"], part["squared_sensitivity"]) == (3, 8 + 8 + 7)


def test_an_order_that_repeats_is_one_less_in_between() -> None:
    flags = (
        "--mechanism",
        "tree",
        "--noise-multiplier",
        20,
        "--steps-per-epoch",
        240,
        "--epochs",
        20,
        "--delta",
        1e-5,
    )
    text = run("epsilon", *flags, "--order", "unknown", "--min-separation", 240).stdout
    assert (
        "steps 1 and 242 at the nearest (an order that repeats every 240 steps is --min-separation 239)"
        in text
    )
    assert "repeats" not in run("epsilon", *flags, "--order", "unknown", "--min-separation", 239).stdout
    known = ask("epsilon", *flags)["epsilon"]
    assert known <= ask("epsilon", *flags, "--order", "unknown", "--min-separation", 239)["epsilon"]


def test_the_papers_numbers_are_those_of_their_accountant() -> None:
    flags = ("--mechanism", "tree", "--steps-per-epoch", 240, "--epochs", 20, "--delta", 1e-5, "--as-printed")
    assert round(ask("epsilon", *flags, "--noise-multiplier", 4)["epsilon"], 2) == 26.21


# Private selection ------------------------------------------------------------------------------------------


SELECTION = ("epsilon", "--noise-multiplier", 4, "--steps", 1, "--delta", 1e-5)


def test_a_private_selection_is_priced() -> None:
    by_rdp = (*SELECTION, "--runs", 10, "--accountant", "rdp")
    assert ask(*by_rdp)["epsilon"] == pytest.approx(2.153654, abs=1e-6)  # golden values B4
    assert ask(*by_rdp, "--stopping", "logarithmic")["epsilon"] == pytest.approx(1.784136, abs=1e-6)
    assert "the best of 10 such runs on average" in run(*by_rdp).stdout


def test_a_stopping_without_runs_is_refused() -> None:
    assert "give --runs" in str(run(*SELECTION, "--stopping", "poisson").exception)
