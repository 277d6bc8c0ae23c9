"""What each of several processes does in the tests of `ranks` and `together`: `torchrun ... ranks_program.py WHAT OUT`.

Every process writes what came of it to OUT/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sordino as sd
from sordino.auditing import audit_gate
from sordino.data.private_bounds import private_bounds
from sordino.privacy import Ledger
from sordino.run_auditing import audit_run

Rows = tuple[Tensor, Tensor]
SETTINGS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"method": sd.dp_sgd(learning_rate=0.5)},
    "adadp": {"method": sd.adadp()},
    "oso": {"method": sd.oso()},
    "dp-ftrl": {"method": sd.dp_ftrl()},
    "quantile": {"method": sd.dp_sgd(learning_rate=0.5, target_quantile=0.5)},
    "users": {"method": sd.dp_sgd(learning_rate=0.5), "groups": torch.arange(240) // 3, "batch_size": 20},
    "dropout": {"method": sd.dp_sgd(learning_rate=0.5), "dropout": 0.2, "show_unprotected": True},
    "frozen layers": {"method": sd.dp_sgd(learning_rate=0.5), "frozen": True},
    "large batches": {"method": sd.adadp(), "batch_size": 200, "copies": 4},
    "without privacy": {"method": sd.sgd(learning_rate=0.5), "budget": None},
    "standardised": {"method": sd.auto()},
    "standardised in front": {"method": sd.auto(), "frozen": True},
}


def rows(count: int = 240) -> Rows:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def network(dropout: float = 0.0, frozen: bool = False) -> nn.Module:
    layers = [nn.Linear(6, 8), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    layers[0].requires_grad_(not frozen)
    return model


def trained(name: str, **more: Any) -> sd.Run:
    settings = {**SETTINGS[name], **more}
    fresh = network(settings.pop("dropout", 0.0), settings.pop("frozen", False))
    model = settings.pop("model", None) or fresh
    data = settings.pop("data", None) or rows(240 * settings.pop("copies", 1))
    loss = nn.CrossEntropyLoss(reduction="none")
    common = {
        "epochs": 2,
        "batch_size": 40,
        "budget": (8, 1e-3),
        "accountant": "rdp",
        "seed": 1,
        "progress": False,
    }
    return sd.train(model, loss, data, **{**common, **settings})


def vector(model: nn.Module) -> list[float]:
    return [float(x) for each in model.parameters() for x in each.detach().view(-1)]


def every_setting(rank: int, out: Path) -> Any:
    """Rank 1 begins with another model: that of rank 0 is the one that counts."""
    found = {}
    for name, settings in SETTINGS.items():
        model = network(settings.get("dropout", 0.0), settings.get("frozen", False))
        if rank == 1:
            nn.init.zeros_(next(model.parameters()))
        run = trained(name, model=model, test=rows(40))
        found[name] = [vector(run.model), run.epsilon, run.history, run.certificate["claim"]["stands"]]
    fitted = sd.SordinoClassifier(epsilon=8, delta=1e-3, bounds=(-4, 4), classes=[0, 1], epochs=1)
    fitted.fit(*(each.numpy() for each in rows()))
    return {**found, "estimator": [fitted.predict_proba(rows(20)[0].numpy()).tolist(), fitted.epsilon_]}


def refused(act: Callable[[], Any]) -> str:
    try:
        act()
    except ValueError as error:
        return str(error)
    return "was not refused"


def other_entries(rank: int, out: Path) -> Any:
    """All that releases something, but for `train`."""
    loss, model, data = nn.CrossEntropyLoss(reduction="none"), network(), rows()
    priced: dict[str, Any] = {"budget": (8, 1e-3), "seed": 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ledger = Ledger()

    def gate() -> sd.Gate:
        how: dict[str, Any] = {"clip": sd.Fixed(1.0), "sampling": sd.Poisson(0.5), "ledger": ledger}
        return sd.Gate(model, loss, data, noise_multiplier=1.0, **how)

    schema = sd.Schema.from_json({"target": {"name": "y"}, "column": [{"name": "a", "kind": "number"}]})
    entries: dict[str, Callable[[], Any]] = {
        "Gate": gate,
        "make_private": lambda: sd.make_private(
            model, loss, data, optimizer=optimizer, epochs=1, batch_size=40, **priced
        ),
        "tune": lambda: sd.tune(model, loss, data, over={"learning_rate": [0.1, 0.2]}, score=data, **priced),
        "federate": lambda: sd.federate(model, loss, data, rounds=2, clients=6, per_round=3, **priced),
        "federate in the open": lambda: sd.federate(model, loss, data, rounds=2, clients=6, per_round=3),
        "least squares": lambda: sd.LeastSquares(horizon=240, epsilon=1.0, delta=1e-3).fit(
            *map(np.asarray, data)
        ),
        "audit_gate": lambda: audit_gate("dp-sgd", budget=sd.Budget(8, 1e-3)),
        "audit_run": lambda: audit_run(model, loss, data, method="dp-sgd", **priced),
        "private_bounds": lambda: private_bounds(schema, {"a": [1.0]}, 1.0, 1e-3, lambda *_: None),
    }
    return {**{name: refused(act) for name, act in entries.items()}, "charges": ledger.charges}


def a_rank_that_differs(rank: int, out: Path) -> Any:
    """What one of the processes has that the others have not, or cannot do."""
    x, y = rows()
    theirs = (x[rank * 120 : rank * 120 + 120], y[rank * 120 : rank * 120 + 120])
    method = sd.dp_sgd(learning_rate=0.5, threshold=1.0 + rank)
    loss = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1 * rank)

    def ends_in(what: type[BaseException]) -> str:
        def end(seen: Any) -> None:
            raise what("halfway")

        try:
            trained("dp-sgd", callbacks=[end])
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return "nothing happened"

    def fails() -> None:
        trained("dp-sgd", method="no such method" if rank == 1 else "dp-sgd")

    def fails_later() -> None:
        trained("dp-sgd", model=_Fails(rank))

    def interrupted_at_work() -> str:
        try:
            trained("dp-sgd", model=_Fails(rank, KeyboardInterrupt))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return "nothing happened"

    return {
        "shards": refused(lambda: trained("dp-sgd", data=theirs)),
        "threshold": refused(lambda: trained("dp-sgd", method=method)),
        "loss": refused(lambda: sd.train(network(), loss, (x, y), budget=(8, 1e-3), seed=1)),
        "one that fails": refused(fails),
        "one that fails later": refused(fails_later),
        "model": refused(lambda: trained("dp-sgd", model=nn.Linear(6, 2 + rank))),
        "refused by rank 0": refused(lambda: trained("dp-sgd", out=__file__ if rank == 0 else None)),
        "a callback that fails": ends_in(ValueError),
        "interrupted": ends_in(KeyboardInterrupt),
        "interrupted at work": interrupted_at_work(),
        "afterwards": len(trained("dp-sgd").history),
    }


class _Fails(nn.Module):
    """On rank 1, in its third pass over real rows, it writes to a buffer, or raises something."""

    def __init__(self, rank: int, raises: type[BaseException] | None = None) -> None:
        super().__init__()
        self.inner, self.rank, self.passes, self.raises = network(), rank, 0, raises
        self.register_buffer("seen", torch.zeros(1))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x) > 5
        if self.rank == 1 and self.passes == 3:
            if self.raises is not None:
                raise self.raises
            self.seen.add_(1)
        result: Tensor = self.inner(x)
        return result


PROGRAMS: dict[str, Callable[[int, Path], Any]] = {
    "every setting": every_setting,
    "other entries": other_entries,
    "a rank that differs": a_rank_that_differs,
}

if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if os.environ.get("JOIN", "yes") == "yes":
        dist.init_process_group("gloo")
    try:
        found = PROGRAMS[what](rank, folder)
    except BaseException:
        found = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(found))
