"""`sordino budget`: one JSON object, honest numbers, errors that say what to do."""

import json
import math
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sordino.cli.budget import app, epochs_of
from sordino.privacy import gaussian, price, repeat


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ask(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # exactly one object


POISSON = ("--sampling-rate", 0.04, "--delta", 1e-5)


def test_epsilon_golden():
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


def test_noise_and_steps_invert_epsilon():
    answer = ask("noise", "--epsilon", 7.3292, "--steps", 2250, "--accountant", "rdp", *POISSON)
    assert answer["noise_multiplier"] == pytest.approx(1.5, abs=1e-3)
    assert answer["epsilon"] <= 7.3292 == answer["inputs"]["epsilon"]
    answer = ask("steps", "--epsilon", 7.3292, "--noise-multiplier", 1.5, "--accountant", "rdp", *POISSON)
    assert answer["steps"] == 2250


def test_no_sampling_has_zcdp_and_gdp():
    answer = ask("epsilon", "--noise-multiplier", 10, "--steps", 4, "--delta", 1e-5)
    assert answer["sampling"] == "none"
    assert answer["gdp_mu"] == pytest.approx(0.2)
    assert answer["zcdp_rho"] == pytest.approx(0.02)


def test_no_noise_is_infinite():
    assert ask("epsilon", "--noise-multiplier", 0, "--steps", 4, "--delta", 1e-5)["epsilon"] == "inf"
    result = run("epsilon", "--noise-multiplier", 0, "--steps", 4, "--delta", 1e-5)
    assert "inf (not private)" in result.stdout


def test_disjoint_batches_are_priced_without_amplification():
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
def test_epochs(steps, rate, epochs):
    assert epochs_of(steps, rate) == epochs
    assert epochs >= math.ceil(steps * rate - 1e-9)


def test_people_get_a_few_lines_with_epsilon_rounded_up():
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
    ],
)
def test_bad_input_is_a_one_line_value_error(args, message):
    result = run(*args)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_unknown_choices_exit_with_2():
    result = run("epsilon", "--noise-multiplier", 1, "--steps", 5, "--delta", 1e-5, "--accountant", "best")
    assert result.exit_code == 2


def test_importing_the_command_does_not_load_the_accountants():
    code = (
        "import sys, sordino.cli.budget; sys.exit('scipy' in sys.modules or 'dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
