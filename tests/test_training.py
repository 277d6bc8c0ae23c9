from __future__ import annotations

import json
import math
import runpy
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from conftest import cross_entropy
from sordino import Banded, Budget, Method, Run, Sgd, adam_wosm, dp_adam, dp_sgd, sgd, train
from sordino.gate import Door
from sordino.methods import adadp, auto, dp_dog, dp_ftrl, oso
from sordino.methods import method as composed
from sordino.noise import GaussianNoise, Streams
from sordino.privacy import recompute
from sordino.runs import Checkpoint, conductor, recording


def new_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def start(toy: Any, **options: Any) -> Run:
    defaults: dict[str, Any] = {
        "method": dp_adam(target_quantile=0.5, average=0.9),
        "epochs": 10,
        "batch_size": 12,
        "budget": Budget(3.0, 1e-3),
        "seed": 1,
        "test": toy,
        "accountant": "rdp",
    }
    loss = options.pop("loss", cross_entropy)
    return train(new_model(), loss, toy, **{**defaults, **options})


def test_the_run_directory(toy: Any, tmp_path: Path) -> None:
    run = start(toy, out=tmp_path / "run", seed=None, accountant="auto")
    summary = json.loads((tmp_path / "run/run.json").read_text())
    assert summary["status"] == "complete"
    assert summary == json.loads(json.dumps(run.summary))
    assert summary["epsilon"] == run.epsilon <= 3.0
    assert (summary["unit"], summary["n"], summary["seeded"]) == ("example", 60, False)
    lines = [json.loads(line) for line in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    assert lines == run.history
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})
    assert lines[-1]["epsilon"] == run.epsilon
    assert all(a["epsilon"] < b["epsilon"] for a, b in pairwise(lines))
    assert "loss" not in lines[0]
    document = json.loads((tmp_path / "run/certificate.json").read_text())
    assert recompute(document).epsilon == pytest.approx(run.epsilon, rel=1e-9)
    saved = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in run.model.state_dict().items())
    assert not (tmp_path / "run/checkpoint").exists()


def test_a_kept_checkpoint_is_for_the_owner_only(toy: Any, tmp_path: Path) -> None:
    start(toy, out=tmp_path / "run", keep_checkpoint=True)
    folder = tmp_path / "run/checkpoint"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "state.safetensors").stat().st_mode) == 0o600


class Crash(Exception):
    pass


@pytest.mark.parametrize(("stop_at", "seed"), [(0, None), (1, 1), (7, None), (24, 1), (25, None), (49, 1)])
def test_an_interrupted_run_goes_on_bit_for_bit(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int, seed: int | None
) -> None:
    """Cut at any step; for an unseeded run, against a rerun of itself under the key in its checkpoint."""
    original = Door.__call__

    def crashing(gate: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.step == stop_at:
            raise Crash
        return original(gate, *args, **kwargs)

    monkeypatch.setattr(Door, "__call__", crashing)
    with pytest.raises(Crash):
        start(toy, out=tmp_path / "cut", seed=seed)
    monkeypatch.setattr(Door, "__call__", original)
    key = Checkpoint.load(tmp_path / "cut/checkpoint")
    assert key is not None
    monkeypatch.setattr(
        recording,
        "streams_of",
        lambda *_: Streams(bytes.fromhex(key.state["key"]), seeded=seed is not None),
    )
    whole = start(toy, out=tmp_path / "whole", seed=seed)
    resumed = start(toy, out=tmp_path / "cut", seed=seed, resume=True)
    for name in ("model.safetensors", "history.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.epsilon == whole.epsilon
    assert resumed.certificate["events"] == whole.certificate["events"]


@pytest.mark.parametrize(
    ("method", "stop_at"),
    [
        (auto(), 13),
        (auto(noise=Banded(3)), 13),
        (auto(noise="gaussian"), 13),
        (composed(clip="quantile", step=Sgd(0.9, by_layer=True), rate="scheduled:0.1"), 13),
        (adadp(tol=0.5), 11),  # between the two halves of a step
        (adadp(tol=0.5, target_quantile=0.5), 11),
        (adadp(tol=0.5, online=True, freeze_after=3.0, average=0.9), 13),
        (adadp(tol=0.5, freeze_after=1.5, discard=True, keep="full"), 15),  # when it is frozen
        (oso(momentum=0.9), 13),
        (oso(update="cosine"), 14),
        (dp_dog(), 13),
        (dp_ftrl(), 13),  # in the middle of a tree, as the next ones
        (dp_ftrl(efficient=False, momentum=0.0, restart_every=2), 14),
        (dp_ftrl(restart_every=None, target_quantile=0.5, average=1), 11),
        (dp_ftrl(restart_every=2, online=True, fresh_start=True), 14),
    ],
    ids=lambda v: v.name if isinstance(v, Method) else str(v),
)
def test_methods_that_adapt_go_on_bit_for_bit(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, stop_at: int
) -> None:
    """All that moves, rates, thresholds, q and velocities, comes back; some steps are repeated, none is paid twice."""
    monkeypatch.setattr(conductor, "_CHECKPOINTS", 4)
    noise = (
        1.0 if method.noise != Banded(3) else 0.3
    )  # of more, nothing but what gathers is seen: the rate rests
    options: dict[str, Any] = {
        "method": method, "budget": None, "noise_multiplier": noise, "delta": 1e-3, "epochs": 4, "evaluations": 2
    }  # fmt: skip
    whole = start(toy, out=tmp_path / "whole", **options)
    interrupt(monkeypatch, stop_at)
    with pytest.raises(Crash):
        start(toy, out=tmp_path / "cut", **options)
    monkeypatch.undo()
    found = Checkpoint.load(tmp_path / "cut/checkpoint")
    assert found is not None
    assert 0 < found.state["process"]["gate"]["step"] < stop_at
    monkeypatch.setattr(conductor, "_CHECKPOINTS", 4)
    resumed = start(toy, out=tmp_path / "cut", resume=True, **options)
    for name in ("model.safetensors", "history.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.history == whole.history
    assert resumed.epsilon == whole.epsilon
    assert resumed.certificate["events"] == whole.certificate["events"]
    assert len({line["rate"] for line in whole.history}) > 3 or method.name == "dp-ftrl"


@pytest.mark.parametrize(
    "method", [adadp(learning_rate=1e30, tol=1e30), oso(learning_rate=1e30), dp_dog(1e30)]
)
def test_methods_that_adapt_may_diverge_and_still_end(toy: Any, method: Method) -> None:
    run = start(toy, method=method, budget=None, noise_multiplier=1.0, delta=1e-3, epochs=2)
    assert run.summary["status"] == "complete"
    assert run.summary["batches"] == 10


def test_resuming_another_plan_is_refused(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Door.__call__
    monkeypatch.setattr(
        Door, "__call__", lambda gate, *a, **k: original(gate, *a, **k) if gate.step < 9 else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        start(toy, out=tmp_path / "cut")
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match="batch_size, batches, noise_multiplier, steps, steps_per_epoch changed"
    ):
        start(toy, out=tmp_path / "cut", batch_size=15, resume=True)
    # The noise is replayed: over other sums it would not hide them.
    with pytest.raises(ValueError, match="public_loss changed"):
        start(toy, out=tmp_path / "cut", public_loss=lambda theta: theta.square().sum(), resume=True)
    with pytest.raises(ValueError, match=r"groups.*changed"):
        start(toy, out=tmp_path / "cut", groups=torch.arange(60), resume=True)
    with pytest.raises(ValueError, match="model or loss changed"):
        start(toy, out=tmp_path / "cut", loss=lambda o, t: 2 * cross_entropy(o, t), resume=True)
    assert start(toy, out=tmp_path / "cut", resume=True).epsilon <= 3.0
    with pytest.raises(ValueError, match="complete"):
        start(toy, out=tmp_path / "cut", resume=True)
    with pytest.raises(ValueError, match="not empty"):
        start(toy, out=tmp_path / "cut")


def test_resume_of_nothing_or_rubbish_is_refused(toy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no interrupted run"):
        start(toy, out=tmp_path / "mistyped", resume=True)
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "rubbish").mkdir()
    (tmp_path / "rubbish/notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no checkpoint"):
        start(toy, out=tmp_path / "rubbish", resume=True)
    (tmp_path / "broken/checkpoint").mkdir(parents=True)
    (tmp_path / "broken/checkpoint/state.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="cannot be read"):
        start(toy, out=tmp_path / "broken", resume=True)
    with pytest.raises(ValueError, match="which run"):
        start(toy, resume=True)


def test_a_complete_run_with_its_checkpoint_is_not_trained_again(toy: Any, tmp_path: Path) -> None:
    start(toy, out=tmp_path / "run", keep_checkpoint=True)
    before = (tmp_path / "run/model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="complete"):
        start(toy, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = Door.__call__

    def crashing(gate: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.step == step:
            raise Crash
        return original(gate, *args, **kwargs)

    monkeypatch.setattr(Door, "__call__", crashing)


def test_other_rows_are_not_the_same_run(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise on other data would be a second release that shows the difference."""
    interrupt(monkeypatch, 20)
    with pytest.raises(Crash):
        start(toy, out=tmp_path / "run")
    monkeypatch.undo()
    x, y = toy
    with pytest.raises(ValueError, match="rows of the data changed"):
        start((x + 1, y), out=tmp_path / "run", resume=True)
    start(toy, out=tmp_path / "run", resume=True)


def test_frozen_parts_come_back_on_resume(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random frozen part, drawn anew when the command is repeated, must not change the releases."""

    def fresh() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3))

    options: dict[str, Any] = {
        "method": dp_sgd(), "epochs": 5, "batch_size": 12, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 1,
        "accountant": "rdp",
    }  # fmt: skip
    first: Any = fresh()
    constant = first[0].weight.clone()
    interrupt(monkeypatch, 12)
    with pytest.raises(Crash):
        train(first, cross_entropy, toy, out=tmp_path / "run", **options)
    monkeypatch.undo()
    resumed = train(fresh(), cross_entropy, toy, out=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.model.state_dict()["0.weight"], constant)


def test_a_diverged_run_still_ends_and_says_so(toy: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="diverged"):
        run = start(toy, method=dp_sgd(learning_rate=1e38), epochs=20, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run/run.json").read_text())
    assert summary["status"] == "complete"
    assert summary["metrics"]["test_loss"] in ("nan", "inf") or summary["metrics"]["test_loss"] > 1e20
    assert run.epsilon <= 3.0
    for line in (tmp_path / "run/history.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_run_killed_before_its_first_checkpoint_starts_again(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/history.jsonl").touch()
    assert start(toy, out=tmp_path / "run", resume=True).epsilon <= 3.0


def test_certificates_without_privacy_can_be_recomputed(toy: Any) -> None:
    run = start(toy, method=sgd(), budget=None)
    assert recompute(run.certificate).epsilon == math.inf


def test_unprotected_loss_only_on_request(toy: Any) -> None:
    run = start(toy, show_unprotected=True)
    assert all(math.isfinite(line["loss"]) for line in run.history)
    assert any("training loss, which was shown" in a for a in run.certificate["unprotected"])


def test_noise_multiplier_instead_of_a_budget(toy: Any) -> None:
    run = start(toy, budget=None, noise_multiplier=1.5, delta=1e-3)
    assert run.summary["noise_multiplier"] == 1.5
    assert math.isfinite(run.epsilon)
    free = start(toy, budget=None, noise_multiplier=0.0)
    assert free.epsilon == math.inf
    assert free.summary["epsilon"] == "inf"


def test_shuffled_batches_cost_more_noise_than_poisson(toy: Any) -> None:
    noises = [
        start(toy, sampling=s, epochs=2).summary["noise_multiplier"]
        for s in ("poisson", "shuffled", "fixed-order")
    ]
    assert noises[0] < noises[1] == noises[2]
    claimed = start(toy, sampling="shuffled-as-poisson", epochs=2)
    with pytest.raises(ValueError, match=r"two steps in a row.*noise=gaussian"):
        start(toy, method="auto", sampling="shuffled-as-poisson", epochs=2)
    by_default = start(toy, method=auto(noise="gaussian"), sampling="shuffled-as-poisson", epochs=2)
    assert "caveat" in by_default.summary
    assert any("NOT A GUARANTEE" in a for a in claimed.certificate["assumptions"])
    assert "NOT A GUARANTEE" in claimed.summary["caveat"]
    assert all("NOT A GUARANTEE" in line["caveat"] for line in claimed.history)


def test_a_known_seed_is_said_to_void_the_guarantee(toy: Any) -> None:
    run, again = (start(toy, epochs=2) for _ in range(2))
    assert run.summary["seeded"] is True
    assert any("void" in a for a in run.certificate["assumptions"])
    assert torch.equal(*(torch.cat([p.flatten() for p in one.model.parameters()]) for one in (run, again)))


def test_a_public_regulariser_acts_after_the_gate(toy: Any) -> None:
    def pull_to_zero(theta: Tensor) -> Tensor:
        return 50.0 * theta.square().sum()

    run = start(
        toy, method=dp_sgd(learning_rate=0.01), public_loss=pull_to_zero, budget=None, noise_multiplier=0
    )
    plain = start(toy, method=dp_sgd(learning_rate=0.01), budget=None, noise_multiplier=0)
    size = [sum(float(p.detach().square().sum()) for p in r.model.parameters()) for r in (run, plain)]
    assert size[0] < 0.01 * size[1]


def test_a_public_regulariser_must_be_one_number(toy: Any) -> None:
    with pytest.raises(ValueError, match="one number"):
        start(toy, public_loss=lambda theta: theta)


def test_a_method_by_its_name_and_groups_as_a_list(toy: Any) -> None:
    run = start(toy, method="dp-adam", groups=[i // 2 for i in range(60)])
    assert (run.summary["method"]["name"], run.summary["n"]) == ("dp-adam", 30)


def test_the_average_is_the_model_that_comes_out(toy: Any) -> None:
    """Full batches without noise: the average over half of four steps has decay 1/2, less at first."""
    settings: dict[str, Any] = {"batch_size": 60, "budget": None, "noise_multiplier": 0}

    def theta(run: Run) -> Tensor:
        return torch.cat([p.detach().flatten() for p in run.model.parameters()])

    expected = torch.cat([p.detach().flatten() for p in new_model().parameters()])
    for step in range(4):
        iterate = theta(start(toy, method=dp_sgd(), epochs=step + 1, **settings))
        expected = torch.lerp(expected, iterate, 1 - min(0.5, (step + 1) / (step + 10)))
    average = theta(start(toy, method=dp_sgd(average=0.5), epochs=4, **settings))
    torch.testing.assert_close(average, expected)
    assert not torch.allclose(average, iterate)


def test_groups_train_with_users_as_the_unit(toy: Any) -> None:
    run = start(toy, groups=torch.arange(60) // 3, batch_size=5)
    assert (run.summary["unit"], run.summary["n"]) == ("user", 20)
    assert run.certificate["guarantee"]["unit"] == "user"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": None}, "either a budget"),
        ({"noise_multiplier": 1.0}, "either a budget"),
        ({"budget": None, "noise_multiplier": 1.0}, "needs a delta"),
        ({"method": sgd()}, "without privacy"),
        ({"batch_size": 61}, "at most 60"),
        ({"batch_size": 0}, "at least 1"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": math.nan}, "epochs"),
        ({"sampling": "random"}, "there is no sampling"),
        ({"accountant": "guess"}, "accountant"),
        ({"method": "dp-sdg"}, "there is no method"),
        ({"groups": [1, 2, 3]}, "one id for each"),
        ({"secure": True}, "leave out the seed"),
        ({"method": adam_wosm(), "budget": None, "noise_multiplier": 0.0}, "needs some"),
    ],
)
def test_bad_input_leaves_nothing_behind(
    toy: Any, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        start(toy, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_large_delta_warns(toy: Any) -> None:
    with pytest.warns(UserWarning, match="not below 1/n"):
        start(toy, budget=Budget(3.0, 0.1))


def test_the_lora_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asserts itself that the adapters moved and nothing else did. Shorter here, and priced the quick way."""
    short = {"epochs": 3, "accountant": "rdp"}
    monkeypatch.setattr("sordino.train", lambda *given, **options: train(*given, **options | short))
    runpy.run_path(str(Path(__file__).parent.parent / "examples" / "lora.py"), run_name="__main__")


# Trees --------------------------------------------------------------------------------------------------------


def test_a_resumed_tree_never_draws_a_node_with_other_noise(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draw of the cut run and of the resumed one, by its node: one std and one vector each."""
    drawn: dict[tuple[str, int], set[tuple[float, bytes]]] = {}
    original = GaussianNoise.accumulate_

    def recorded(self: Any, vector: Tensor, std: float, purpose: str, step: int) -> None:
        noise = torch.zeros_like(vector)
        original(self, noise, abs(std), purpose, step)
        drawn.setdefault((purpose, step), set()).add((abs(std), noise.numpy().tobytes()))
        original(self, vector, std, purpose, step)

    monkeypatch.setattr(conductor, "_CHECKPOINTS", 4)
    for efficient in (True, False):
        drawn.clear()
        method = dp_ftrl(efficient=efficient, restart_every=2, target_quantile=0.5)
        options: dict[str, Any] = {
            "method": method, "budget": None, "noise_multiplier": 1.0, "delta": 1e-3, "epochs": 4
        }  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(GaussianNoise, "accumulate_", recorded)
            interrupt(patch, 15)
            with pytest.raises(Crash):
                start(toy, out=tmp_path / f"cut{efficient}", **options)
        before = len(drawn)
        with monkeypatch.context() as patch:
            patch.setattr(GaussianNoise, "accumulate_", recorded)
            start(toy, out=tmp_path / f"cut{efficient}", resume=True, **options)
        assert len(drawn) > before > 0
        assert all(len(noises) == 1 for noises in drawn.values())


def test_a_tree_run_pays_by_the_tree_and_keeps_its_budget(toy: Any) -> None:
    run = start(toy, method=dp_ftrl(restart_every=2), epochs=5, evaluations=2)
    assert run.epsilon <= 3.0
    assert run.epsilon == pytest.approx(3.0, abs=1e-3)
    assert recompute(run.certificate).epsilon == run.epsilon
    # Two full trees and one of an epoch; each is paid when it is opened.
    kinds = [part["type"] for part in run.certificate["events"]["events"]]
    assert kinds == ["repeated", "gaussian"]
    spent = [line["epsilon"] for line in run.history]
    per_epoch = run.summary["steps"] // 5
    steps = [line["step"] for line in run.history]
    by_tree = {(step - 1) // (2 * per_epoch): set[float]() for step in steps}
    for step, epsilon in zip(steps, spent, strict=True):
        by_tree[(step - 1) // (2 * per_epoch)].add(epsilon)
    assert all(len(of_one) == 1 for of_one in by_tree.values())
    assert sorted(spent) == spent
    assert len(set(spent)) == 3
    assert spent[-1] == run.epsilon
    assert run.summary["sampling"] == "shuffled"
    assert run.summary["method"]["noise"]["restart_every"] == 2
    assert any("permutation every 2 epochs" in line for line in run.certificate["assumptions"])
    first = run.certificate["events"]["events"][0]["event"]["noise_multiplier"]
    squares = (run.summary["noise_multiplier"] / first) ** 2
    assert any(f"squared sensitivity {squares:.0f}," in line for line in run.certificate["assumptions"])
    in_order = start(toy, method=dp_ftrl(), sampling="fixed-order", epochs=2)
    assert any("fixed order of the data" in line for line in in_order.certificate["assumptions"])


def test_planned_trees_are_written_down(toy: Any) -> None:
    run = start(toy, method="dp-ftrl", epochs=4)
    assert run.summary["method"]["noise"]["restart_every"] in (None, 1, 2, 3)


def test_the_plain_average_is_that_of_the_points_asked(toy: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 60, "budget": None, "noise_multiplier": 0}

    def theta(run: Run) -> Tensor:
        return torch.cat([p.detach().flatten() for p in run.model.parameters()])

    points = [torch.cat([p.detach().flatten() for p in new_model().parameters()])]
    for step in range(3):
        points.append(theta(start(toy, method=dp_sgd(), epochs=step + 1, **settings)))
    average = theta(start(toy, method=dp_sgd(average=1), epochs=4, **settings))
    torch.testing.assert_close(average, torch.stack(points).mean(0))


def test_rows_that_are_in_no_batch_are_counted(toy: Any) -> None:
    left = start(toy, method=dp_ftrl(), sampling="fixed-order", batch_size=13, epochs=2)
    assert left.summary["units_in_no_batch"] == 60 % 13
    assert any(
        line.startswith("8 of 60 examples are in no batch") for line in left.certificate["assumptions"]
    )
    once = start(toy, method=dp_ftrl(restart_every=None), batch_size=13, epochs=2)
    assert once.summary["units_in_no_batch"] == 8
    for method, sampling in ((dp_ftrl(restart_every=1), None), (dp_sgd(), "shuffled"), (dp_sgd(), None)):
        run = start(toy, method=method, sampling=sampling, batch_size=13, epochs=2)
        assert "units_in_no_batch" not in run.summary


def test_a_threshold_that_ran_away_is_said(toy: Any) -> None:
    with pytest.warns(UserWarning, match="the threshold ran away"):
        start(toy, method=dp_sgd(10.0, target_quantile=1.0), epochs=80)
