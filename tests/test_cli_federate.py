"""`sordino federate`, in this process: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import sordino
from sordino.privacy import recompute

TINY = ["--rounds", "2", "--clients", "10", "--per-round", "3", "--engine", "looped", "--workers", "1"]
NOISY = ["--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp"]
PAID = ["--epsilon", "8", "--delta", "1e-3", "--accountant", "rdp"]
WRITTEN = {"run.json", "history.jsonl", "certificate.json", "model.safetensors", "inputs.json"} | {
    "report.png",
    "report.html",
}


def summary_of(monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: str) -> dict[str, Any]:
    """Of a tiny run that has to succeed."""
    capsys.readouterr()
    with monkeypatch.context() as patch:
        assert sordino(patch, "federate", "digits", *TINY, "--seed", "1", *arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_federate_prints_and_writes_what_matters(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "federate", "digits", *TINY, "--out", "run") == 0
    out, _ = capsys.readouterr()
    for words in (
        "test accuracy      ",
        "(held-out rows)",
        "clients            10, 2 rounds, engine looped",
        "run                run",
    ):
        assert words in out
    assert "epsilon            inf (not private)" in out
    run = here / "run"
    assert {path.name for path in run.iterdir()} == WRITTEN | {"clients.json"}
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in history] == [1, 2]
    assert all(line["participants"] == 3 for line in history)
    summary = json.loads((run / "run.json").read_text())
    assert (summary["status"], summary["algorithm"]["kind"]) == ("complete", "AdaBest")
    assert (summary["private"], summary["epsilon"]) == (False, "inf")
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["guarantee"]["epsilon"] == "inf"
    clients = json.loads((run / "clients.json").read_text())
    assert clients["covered"] is False


def test_json_is_exactly_one_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    summary = summary_of(monkeypatch, capsys, "--partition", "dirichlet:0.3", "--holdout", "2")
    assert summary["status"] == "complete"
    assert (summary["clients"], summary["holdout"]) == (10, 2)
    assert {"test_accuracy", "holdout_accuracy"} <= set(summary["metrics"])
    assert (here / summary["run"] / "run.json").exists()


def test_a_private_run_says_what_it_spent_and_nothing_of_single_clients(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert sordino(monkeypatch, "federate", "digits", *TINY, *PAID, "--seed", "1", "--out", "run") == 0
    out, _ = capsys.readouterr()
    for words in (
        "epsilon            7.99",
        "delta              0.001",
        "unit               one user of 10; relation: zero-out",
        "spent by           2 rounds, noise multiplier",
        "seeded             a known seed voids the guarantee",
        "not covered by the guarantee",
    ):
        assert words in out
    run = here / "run"
    assert {path.name for path in run.iterdir()} == WRITTEN
    summary = json.loads((run / "run.json").read_text())
    assert summary["participation"] == {"kind": "Poisson", "rate": 0.3}
    assert 7.9 < summary["epsilon"] <= 8
    assert "clients_with_state" not in summary
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["guarantee"]["unit"] == "user"
    assert recompute(certificate).epsilon == certificate["guarantee"]["epsilon"] == summary["epsilon"]
    for line in map(json.loads, (run / "history.jsonl").read_text().splitlines()):
        assert {"epsilon", "threshold"} <= set(line)
        assert not {"participants", "left_out", "client_rates"} & set(line)


def test_what_is_not_protected_is_shown_when_asked_for(here: Path, monkeypatch: Any, capsys: Any) -> None:
    summary_of(monkeypatch, capsys, *NOISY, "--show-unprotected", "--out", "run")
    assert (here / "run/clients.json").exists()


def test_samples_of_a_fixed_size_are_about_replacing_a_user(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    fixed = ["--algorithm", "fedavg", "--participation", "fixed", "--out", "run"]
    summary = summary_of(monkeypatch, capsys, *NOISY, *fixed)
    assert summary["relation"] == "substitution (REPLACE_ONE)"
    certificate = json.loads((here / "run/certificate.json").read_text())
    assert "differ by replacing one user" in certificate["assumptions"][0]
    assert recompute(certificate).epsilon == summary["epsilon"] > 0


def test_dp_ftrlm_has_tree_noise_and_clients_in_an_order(here: Path, monkeypatch: Any, capsys: Any) -> None:
    changes = ["--set", "restart_every=1", "--set", "momentum=0.8", "--set", "server_rate=0.5"]
    summary = summary_of(monkeypatch, capsys, "--server", "dp-ftrlm", *changes, *NOISY)
    assert summary["algorithm"]["kind"] == "FedAvg"
    assert summary["algorithm"]["server"]["kind"] == "Ftrl"
    assert summary["algorithm"]["server"]["momentum"] == 0.8  # the server's, not the clients'
    assert summary["local"]["momentum"] == 0.0
    assert summary["algorithm"]["server_rate"] == 0.5
    assert (summary["noise"]["kind"], summary["noise"]["restart_every"]) == ("Tree", 1)
    assert summary["participation"]["kind"] == "Shuffled"
    separated = summary_of(
        monkeypatch, capsys, "--server", "dp-ftrl", "--participation", "separated:2", *NOISY
    )
    assert separated["participation"] == {"kind": "Separated", "count": 3, "separation": 2}
    assert separated["noise"]["kind"] == "Tree"


def test_banded_noise_has_clients_by_turns_or_apart(here: Path, monkeypatch: Any, capsys: Any) -> None:
    changes = ["--server", "sgdm", "--set", "noise=banded:2", "--out"]
    by_turns = summary_of(monkeypatch, capsys, *changes, "turns", *NOISY)
    assert by_turns["noise"] == {"kind": "Banded", "bands": 2}
    assert by_turns["participation"]["kind"] == "Cyclic"
    assert by_turns["participation"]["groups"] == 2
    apart = summary_of(monkeypatch, capsys, *changes, "apart", "--participation", "separated:2", *NOISY)
    assert apart["participation"]["kind"] == "Separated"
    for name, summary in (("turns", by_turns), ("apart", apart)):
        certificate = json.loads((here / name / "certificate.json").read_text())
        assert recompute(certificate).epsilon == summary["epsilon"] > 0
        assert any("banded matrix" in line for line in certificate["assumptions"])


def test_buffered_noise_has_clients_apart_or_in_one_order(here: Path, monkeypatch: Any, capsys: Any) -> None:
    changes = ["--server", "sgdm", "--set", "noise=buffered:2", "--set", "threshold=0.1", "--out"]
    in_order = summary_of(monkeypatch, capsys, *changes, "order", *NOISY)
    apart = summary_of(monkeypatch, capsys, *changes, "apart", "--participation", "separated:2", *NOISY)
    assert (in_order["participation"]["kind"], apart["participation"]["kind"]) == ("Shuffled", "Separated")
    for name, summary in (("order", in_order), ("apart", apart)):
        assert summary["noise"] == {"kind": "Buffered", "buffers": 2, "horizon": None}
        certificate = json.loads((here / name / "certificate.json").read_text())
        assert recompute(certificate).epsilon == summary["epsilon"] > 0
        assert any("is a sum of" in line for line in certificate["assumptions"])


def test_settings_reach_what_they_are_about(here: Path, monkeypatch: Any, capsys: Any) -> None:
    summary = summary_of(
        monkeypatch, capsys,
        *("--set", "beta=0.7", "--set", "mu=0.03", "--set", "learning_rate=0.2", "--set", "decay=0.9"),
        *("--set", "momentum=0.5", "--local-epochs", "2", "--batch-size", "20", "--max-examples", "50"),
        *("--store", "file", "--drop-out", "0.1", "--model", "linear"),
    )  # fmt: skip
    assert summary["algorithm"] == {"kind": "AdaBest", "mu": 0.03, "beta": 0.7}
    assert (summary["rate"], summary["decay"]) == (0.2, 0.9)
    assert summary["local"] == {"kind": "LocalSgd", "momentum": 0.5}  # without a --server it is the clients'
    assert summary["local_plan"] == {"epochs": 2, "batch_size": 20, "top_up": True, "max_examples": 50}
    assert (summary["store"], summary["model"], summary["conditions"]["drop_out"]) == ("file", "linear", 0.1)


def test_clients_that_tune_themselves(here: Path, monkeypatch: Any, capsys: Any) -> None:
    adadp = ["--algorithm", "fedavg", "--local", "adadp", "--set", "tol=0.5"]
    summary = summary_of(monkeypatch, capsys, *adadp)
    assert (summary["local"]["kind"], summary["local"]["tol"]) == ("LocalExtrapolation", 0.5)
    assert (summary["keep_rates"], summary["decay"]) == (True, 1.0)  # rates that are found do not decay
    assert summary_of(monkeypatch, capsys, *adadp, "--set", "keep_rates=false")["keep_rates"] is False


@pytest.mark.parametrize(
    ("settings", "clip"),
    [
        ([], {"kind": "Quantile"}),
        (["threshold=0.5"], {"kind": "Fixed", "threshold": 0.5}),
        (["target_quantile=0.7"], {"kind": "Quantile", "target_quantile": 0.7}),
        (
            ["threshold=0.5", "target_quantile=0.7"],
            {"kind": "Quantile", "target_quantile": 0.7, "threshold": 0.5},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_threshold_follows_a_quantile_or_stays(
    here: Path, monkeypatch: Any, capsys: Any, settings: list[str], clip: dict[str, Any]
) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    summary = summary_of(monkeypatch, capsys, *NOISY, *given)
    assert summary["clip"].items() >= clip.items()


def test_resuming_goes_on_where_a_run_ended(here: Path, monkeypatch: Any, capsys: Any) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    whole = summary_of(monkeypatch, capsys, "--out", "whole")
    with monkeypatch.context() as patch:
        patch.setattr("sordino.runs.directory.RunDirectory.write_model", stopped)
        assert sordino(monkeypatch, "federate", "digits", *TINY, "--seed", "1", "--out", "cut") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--out cut --resume" in err
    again = summary_of(monkeypatch, capsys, "--out", "cut", "--resume")
    assert again["metrics"] == whole["metrics"]
    assert (here / "cut/model.safetensors").read_bytes() == (here / "whole/model.safetensors").read_bytes()


def test_npz_from_end_to_end(here: Path, monkeypatch: Any, capsys: Any) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5)).astype(np.float32)
    np.savez(here / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    own = ["--rounds", "2", "--per-round", "3", "--engine", "looped", "--workers", "1", "--json"]
    assert sordino(monkeypatch, "federate", "mine.npz", *own, "--partition", "iid", "--clients", "4") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["data"], summary["clients"]) == ("mine", 4)


@pytest.mark.parametrize(("clients", "asked"), [("5", 5), ("12", 10)])
def test_a_round_has_ten_clients_or_all_there_are(
    here: Path, monkeypatch: Any, capsys: Any, clients: str, asked: int
) -> None:
    few = [
        "--rounds",
        "1",
        "--clients",
        clients,
        "--engine",
        "looped",
        "--workers",
        "1",
        "--local-epochs",
        "1",
    ]
    assert sordino(monkeypatch, "federate", "digits", *few, "--seed", "1", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    (line,) = (here / summary["run"] / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["participants"] == asked


BAD: list[tuple[list[str], str]] = [
    (["--algorithm", "adabset"], "there is no algorithm 'adabset'"),
    (["--partition", "dirichelt"], "partition"),
    (["--partition", "dirichlet:-1"], "alpha"),
    (["--partition", "natural"], "does not say whose its rows are"),
    (["--participation", "sometimes"], "there is no participation"),
    (["--participation", "separated"], "separated:10"),
    (["--participation", "separated:9"], "units"),
    (["--local", "lbfgs"], "lbfgs"),
    (["--server", "adagrad"], "there is no server"),
    (["--server", "adam", "--set", "momentum=0.5"], "has no momentum"),
    (["--set", "betta=0.5"], "has no setting 'betta'"),
    (["--set", "lr=0.1"], "it has mu, beta, and a federation like this has learning_rate, decay, keep_rates"),
    (["--set", "lr=0.1"], "did you mean learning_rate?"),
    (["--set", "lr=0.1", *NOISY], "threshold, target_quantile"),
    (["--set", "beta"], "NAME=VALUE"),
    (["--set", "beta=1", "--set", "beta=2"], "twice"),
    (["--set", "beta=high"], "beta must be a number"),
    (["--set", "learning_rate=fast"], "learning_rate must be a number"),
    (["--set", "learning_rate=-1"], "positive"),
    (["--set", "threshold=1"], "has no setting 'threshold'"),  # there is nothing to clip without privacy
    (["--set", "restart_every=2", *NOISY], "restart_every is for tree noise"),
    (["--set", "noise=banded:2"], "noise is for user-level privacy"),
    ([*NOISY, "--set", "noise=pink"], "there is no noise mechanism 'pink'"),
    ([*NOISY, "--set", "noise=banded:9"], "use at most 3 bands"),
    ([*NOISY, "--set", "noise=banded:2", "--participation", "fixed"], "an order or by turns"),
    (["--epsilon", "3"], "--delta: choose one well below 1/clients, such as 1e-2"),
    (["--epsilon", "3", "--clients", "500"], "such as 1e-4"),
    (["--device", "gpu"], "there is no device 'gpu' here"),
    (["--delta", "1e-3"], "--delta needs"),
    (["--epsilon", "3", "--noise-multiplier", "1", "--delta", "1e-3"], "not both"),
    (["--epsilon", "0", "--delta", "1e-3"], "epsilon"),
    ([*NOISY, "--over-selection", "1.5"], "over_selection=1"),
    ([*NOISY, "--algorithm", "adabest", "--participation", "fixed"], "no known price"),
    ([*NOISY, "--set", "threshold=-1"], "threshold"),
    ([*NOISY, "--server", "dp-ftrl", "--participation", "poisson"], "order"),
    (["--resume"], "--out"),
    (["--per-round", "11"], "per_round must be from 1 to the 10"),
    (["--per-round", "0"], "per_round"),
    (["--rounds", "0"], "rounds"),
    (["--clients", "5000"], "5000 clients"),
    (["--batch-size", "0"], "batch_size"),
    (["--drop-out", "2"], "drop"),
    (["--engine", "steam"], "steam"),
    (["--store", "cloud"], "cloud"),
    (["--workers", "0"], "workers"),
    (["--model", "resnet"], "model"),
    (["--algorithm", "scaffold", "--local", "adam"], "use sgd without momentum"),
    (
        [*NOISY, "--secure", "--seed", "1"],
        "--secure takes its randomness from the operating system: leave out --seed",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD]
)
def test_bad_input_gets_one_line_and_exit_code_2(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], message: str
) -> None:
    assert sordino(monkeypatch, "federate", "digits", *TINY, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1, err
    assert err.startswith("sordino: ")
    assert list(here.iterdir()) == []


def test_a_used_directory_is_not_overwritten(here: Path, monkeypatch: Any, capsys: Any) -> None:
    (here / "run").mkdir()
    (here / "run/precious.txt").write_text("mine")
    assert sordino(monkeypatch, "federate", "digits", *TINY, "--out", "run") == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (here / "run").iterdir()] == ["precious.txt"]


def test_help(monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "federate", "--help") == 0
    assert "--participation" in capsys.readouterr().out
    assert sordino(monkeypatch, "federate", "digits", "--no-such-option") == 2
