"""Nothing that one unit does outside the gate is visible (DESIGN 4.16).

Two runs on neighbouring data sets, one unit replaced by a wild one, with the same seed. The real computation runs on
the private rows, but what it comes to is replaced by zeros, so the only way from the rows to an output is one that
should not exist. Then every byte that was written or printed has to be the same: files, their names, sizes and modes,
stdout, stderr, warnings, exit codes. Timings are masked.

Of a checkpoint, which is for the owner's eyes and holds the noise key, two things may differ, and do so on purpose:
keyed fingerprints of the rows, by which a resumed run knows them, and what clients keep, which is theirs.
"""

from __future__ import annotations

import json
import re
import secrets
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as sd
from conftest import cross_entropy, in_turn, sordino
from sordino import named
from sordino.data import as_examples
from sordino.federated import OwnLoop, federate
from sordino.federated.population import Population
from sordino.federated.user_level import UserGate
from sordino.gate import Door, ExampleGate
from sordino.gradients import Engine
from sordino.methods import method_named
from sordino.report import drawn
from sordino.runs import RunDirectory
from sordino.standardise.standardiser import Standardiser

TIMINGS = {"seconds", "peak_memory_mib", "created", "digest"}  # which is of the time too
CLOCK = re.compile(r"\d+:\d\d(:\d\d)?|-:--(:--)?")  # of the progress bar
CLOCKED = re.compile(rb'<span class="clock">[^<]*</span>')  # of the page: what TIMINGS are in JSON
NAN, INF = float("nan"), float("inf")


# What can be seen of a run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """All that a run left behind, by what it is."""

    outcome: str
    out: str
    err: str
    warned: list[str]
    files: dict[str, Any]  # path: mode and masked content


def differences(one: Seen, other: Seen) -> list[str]:
    """In words, for the message of a test that fails."""
    parts = {name: (getattr(one, name), getattr(other, name)) for name in ("outcome", "out", "err", "warned")}
    for path in sorted(one.files.keys() | other.files.keys()):
        parts[path] = (one.files.get(path), other.files.get(path))
    return [f"{name}: {_where(repr(a), repr(b))}" for name, (a, b) in parts.items() if a != b]


def _where(one: str, other: str) -> str:
    """The place where two texts part."""
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    show = slice(max(0, start - 60), start + 60)
    return f"...{one[show]}... is not ...{other[show]}..."


def files_of(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        return {}
    found: dict[str, Any] = {".": stat.S_IMODE(folder.stat().st_mode)}
    for path in sorted(folder.rglob("*")):
        content = None if path.is_dir() else masked(path)
        found[str(path.relative_to(folder))] = (stat.S_IMODE(path.stat().st_mode), content)
    return found


def masked(path: Path) -> Any:
    """The content of a file, without times: then sizes may differ by their digits alone."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(without_times(json.loads(content)), indent=2)
    if path.suffix == ".jsonl":
        return [json.dumps(without_times(json.loads(line))) for line in content.decode().splitlines()]
    if path.parent.name == "checkpoint" and path.suffix == ".safetensors":
        return of_checkpoint(path)
    if path.suffix == ".html":
        return CLOCKED.sub(b"", content)
    if path.name == "clients.f32":
        return None  # what clients keep, and only that
    return content


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "masked" if k in TIMINGS else without_times(v) for k, v in value.items()}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def of_checkpoint(path: Path) -> Any:
    with safe_open(path, framework="pt") as opened:
        state = json.loads(opened.metadata()["state"])
        names = sorted(name for name in opened.keys() if not name.startswith("process/store/"))  # noqa: SIM118
        tensors = {name: (str(t.dtype), t.tolist()) for name in names for t in [opened.get_tensor(name)]}
    state.get("process", {}).pop("store", None)
    state["pinned"] = sorted(state.get("pinned", {}))
    return json.dumps(without_times(state)), repr(tensors)


Act = Callable[[Path], object]


@dataclass(frozen=True)
class Observer:
    capfd: pytest.CaptureFixture[str]

    def __call__(self, act: Act, folder: Path) -> Seen:
        """Run ``act``, which writes to ``folder``, and tell what can be seen of it."""
        sys.stdout.flush()
        self.capfd.readouterr()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = _outcome(act, folder)
            warned = [f"{w.category.__name__}: {w.message}" for w in caught]
        # Where the files of a test are is no row's doing.
        out, err = (
            CLOCK.sub("-", text.replace(str(folder), "RUN").replace(str(folder.parent), "HERE"))
            for text in self.capfd.readouterr()
        )
        if out.startswith("{"):  # --json
            out = json.dumps(without_times(json.loads(out)))
        return Seen(outcome, out, err, warned, files_of(folder))


def _outcome(act: Act, folder: Path) -> str:
    try:
        return f"returned {act(folder)!r}"
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return f"raised {type(error).__name__}: {error}"


@pytest.fixture
def observe(capfd: pytest.CaptureFixture[str]) -> Observer:
    return Observer(capfd)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates whose sums are computed, from the private rows, and then replaced by zeros."""
    monkeypatch.setattr(Engine, "debug", False)
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)  # the name of a gate in its ledger
    for kind in (ExampleGate, UserGate):
        monkeypatch.setattr(kind, "_sums_at", partial_zeros(kind._sums_at))
    real = Standardiser.total
    monkeypatch.setattr(Standardiser, "total", lambda *each: torch.zeros_like(real(*each)))


def partial_zeros(real: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    def zeros(self: Any, *args: Any) -> tuple[Tensor, Tensor]:
        sums, numbers = real(self, *args)
        return torch.zeros_like(sums), torch.zeros_like(numbers)

    return zeros


USUAL: dict[Any, Seen] = {}  # runs on the usual rows, which many tests compare with


def check(observe: Observer, tmp_path: Path, usual: Act, wild: Act, name: Any = None) -> None:
    """The one assertion of this file. A run that is refused shows nothing, so the usual one has to go well.

    Tests that share a ``name`` share the run on the usual rows.
    """
    one = USUAL.get(name) or observe(usual, tmp_path / "usual")
    if name is not None:
        USUAL[name] = one
    other = observe(wild, tmp_path / "wild")
    assert one.outcome.startswith("returned"), one.outcome
    assert differences(one, other) == []
    if one.files:
        assert {"run.json", "history.jsonl", "certificate.json", "model.safetensors"} <= set(one.files)


# Interrupted, and resumed


class Cut(Exception):
    """The machine is gone."""


@contextmanager
def cut(step: int, error: type[BaseException] = Cut) -> Iterator[None]:
    """``with cut(7):`` the eighth call of a gate does not happen."""
    real = Door.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.step == step:
            raise error
        return real(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "__call__", call)
        yield


def check_resumed(
    observe: Observer, tmp_path: Path, usual: Callable[..., Act], wild: Callable[..., Act], step: int
) -> None:
    """What an interrupted run leaves behind, its checkpoint too, and what the resumed one adds."""
    seen: list[list[Seen]] = []
    for name, start in (("usual", usual), ("wild", wild)):
        with cut(step):
            half = observe(start(resume=False), tmp_path / name)
        assert half.outcome.startswith("raised Cut")
        seen.append([half, observe(start(resume=True), tmp_path / name)])
    assert seen[0][1].outcome.startswith("returned"), seen[0][1].outcome
    assert any(path.startswith("checkpoint/") for path in seen[0][0].files)
    assert differences(seen[0][0], seen[1][0]) == []
    assert differences(seen[0][1], seen[1][1]) == []


# Models and rows --------------------------------------------------------------------------------------------


class Shared(nn.Module):
    """A layer that all positions share, and their differences: a row that is constant over positions cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.shared(x)
        output: Tensor = self.head((z[:, 1:] - z[:, :-1]).mean(1))
        return output


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.embedding(x).mean(1))
        return output


class Branches(nn.Module):
    """Large inputs take another way through the model: made-up rows do not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x.abs() > 100).any(1, keepdim=True), self.two(x.sort(1).values), self.one(x))


def model_of(kind: str) -> nn.Module:
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        "shared": Shared,
        "tokens": Tokens,
        "branches": Branches,
        "dropout": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return makers[kind]()


ROWS, UNIT = 30, 2  # the unit that becomes wild is among the first five, at which an engine looks


def rows_for(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = {"shared": (ROWS, 3, 6), "tokens": (ROWS, 4)}.get(kind, (ROWS, 6))
    y = torch.randint(0, 3, (ROWS,), generator=generator)
    if kind == "tokens":
        return torch.randint(0, 9, shape, generator=generator), y
    return torch.randn(shape, generator=generator), y


def changed(data: tuple[Tensor, Tensor], row: Any = None, label: int | None = None) -> tuple[Tensor, Tensor]:
    x, y = data[0].clone(), data[1].clone()
    if row is not None:
        x[UNIT] = torch.as_tensor(row, dtype=x.dtype)
    if label is not None:
        y[UNIT] = label
    return x, y


# The loss or the model raises at labels and tokens out of range: these need gradients/engine.py to be mended,
# where a unit whose forward or backward pass raises counts as zero.
WILD: dict[str, Any] = {
    "huge": lambda data: changed(data, 1e30),
    "overflowing": lambda data: changed(data, 3e38),
    "tiny": lambda data: changed(data, 1e-38),
    "zero": lambda data: changed(data, 0.0),
    "nan": lambda data: changed(data, NAN),
    "infinite": lambda data: changed(data, INF),
    "constant": lambda data: changed(data, 1e6),
    "label": lambda data: changed(data, label=7),
    "negative label": lambda data: changed(data, label=-5),
    "token": lambda data: changed(data, 4217),
    "negative token": lambda data: changed(data, -1),
}


WILD_ROWS = [
    *(("mlp", name) for name in WILD if "token" not in name),
    *(("shared", name) for name in ("huge", "nan", "constant", "zero")),
    *(("tokens", name) for name in ("token", "negative token", "label")),
    *(("branches", name) for name in ("huge", "constant", "nan")),
    *(("dropout", name) for name in ("huge", "nan", "label")),
]


def start(data: Any, kind: str = "mlp", **settings: Any) -> Act:
    usual: dict[str, Any] = {
        "method": "dp-sgd", "epochs": 3, "batch_size": 15, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 4,
        "accountant": "rdp", "progress": False, "test": tuple(part[:9] for part in rows_for(kind)),
    }  # fmt: skip

    def act(folder: Path) -> object:
        run = sd.train(model_of(kind), cross_entropy, data, **{**usual, **settings}, out=folder)
        return run.epsilon, run.metrics, without_times(run.summary), without_times(run.certificate)

    return act


# Central ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("case", "sampling"), in_turn(WILD_ROWS, ["poisson", "fixed-order"]), ids=str)
def test_a_wild_row(observe: Observer, tmp_path: Path, case: tuple[str, str], sampling: str) -> None:
    """Fails for labels and tokens out of range, and for rows that make the engine give up its rules, until
    gradients/engine.py is mended."""
    kind, wild = case
    data = rows_for(kind)
    usual, other = (start(rows, kind, sampling=sampling) for rows in (data, WILD[wild](data)))
    check(observe, tmp_path, usual, other, name=("rows", kind, sampling))


METHODS: dict[str, Any] = {
    **{
        name: method_named(name)
        for name, entry in named.METHODS.entries.items()
        if "public" not in entry.facts
    },
    "oso by cosine": sd.oso(update="cosine"),
    "quantile": sd.dp_sgd(target_quantile=0.5),
    "per layer": sd.dp_sgd(per_layer=True),
    "dp-adam": sd.dp_adam(average=0.9),
    "adadp online": sd.adadp(online=True),
    "dp-ftrl quantile": sd.dp_ftrl(target_quantile=0.5),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("method", "wild"), in_turn(list(METHODS), ["huge", "nan", "label"]))
def test_a_wild_row_whatever_the_method(observe: Observer, tmp_path: Path, method: str, wild: str) -> None:
    """Fails for labels until gradients/engine.py is mended."""
    data = rows_for("mlp")
    usual, other = (start(rows, method=METHODS[method]) for rows in (data, WILD[wild](data)))
    check(observe, tmp_path, usual, other, name=("methods", method))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("wild", ["huge", "overflowing", "tiny", "zero", "nan", "infinite", "constant"])
def test_a_wild_row_among_inputs_that_are_standardised(observe: Observer, tmp_path: Path, wild: str) -> None:
    data = rows_for("mlp")
    settings: dict[str, Any] = {
        "method": "auto",
        "budget": (60, 1e-3),
        "noise_multiplier": None,
        "delta": None,
    }
    usual, other = (start(rows, **settings) for rows in (data, WILD[wild](data)))
    check(observe, tmp_path, usual, other, name="standardised")
    assert "'standardise': {'how': 'private'" in USUAL["standardised"].outcome


GROUPS = torch.arange(ROWS) // 3
USERS: dict[str, Any] = {
    "huge": lambda data: (changed(data, 1e30), GROUPS),
    "nan": lambda data: (changed(data, NAN), GROUPS),
    "label": lambda data: (changed(data, label=7), GROUPS),  # needs gradients/engine.py
    "cancelling": lambda data: (cancelling(data), GROUPS),
    "many rows": lambda data: many_rows(data),
}


def cancelling(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The rows of one user, large and opposite."""
    x, y = data[0].clone(), data[1].clone()
    x[0], x[1] = 1e8, -1e8
    return x, y


def many_rows(data: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    more = torch.full((400,), UNIT)
    return (torch.cat([data[0], data[0][more]]), torch.cat([data[1], data[1][more]])), torch.cat(
        [GROUPS, GROUPS[more]]
    )


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("wild", "method", "microbatch"),
    [(w, m, b) for (w, m), b in in_turn(list(product(USERS, ["dp-sgd", "oso", "dp-ftrl"])), [None, 4])],
)
def test_a_wild_user(
    observe: Observer, tmp_path: Path, wild: str, method: str, microbatch: int | None
) -> None:
    data = rows_for("mlp")
    other, groups = USERS[wild](data)
    settings: dict[str, Any] = {"method": method, "batch_size": 5, "microbatch": microbatch, "delta": 1e-2}
    usual = start(data, groups=GROUPS, **settings)
    check(
        observe, tmp_path, usual, start(other, groups=groups, **settings), name=("users", method, microbatch)
    )


class Own(Dataset[Any]):
    """Rows of the user's own making, one of which may raise or be of another form."""

    def __init__(self, bad: Any = None) -> None:
        self.rows: list[Any] = [(x, int(y)) for x, y in zip(*rows_for("mlp"), strict=True)]
        if bad is not None:
            self.rows[UNIT] = bad

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.rows[index], Exception):
            raise self.rows[index]
        return self.rows[index]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "bad",
    [(torch.full((6,), NAN), 1), KeyError("4217"), (torch.zeros(7), 1), (torch.zeros(6), 1.5), None],
    ids=["nan", "raises", "longer", "fraction", "nothing"],
)
def test_a_wild_row_of_a_data_set(observe: Observer, tmp_path: Path, bad: Any) -> None:
    """Needs Gate._sums_at to ask for ``take_readable``, which leaves out the rows that cannot be read."""
    check(observe, tmp_path, start(Own()), start(Own("nothing" if bad is None else bad)), name="data set")


@pytest.mark.usefixtures("silent")
def test_a_wild_row_and_a_progress_bar(observe: Observer, tmp_path: Path) -> None:
    data = rows_for("mlp")
    usual, other = (start(rows, progress=True) for rows in (data, changed(data, NAN)))
    check(observe, tmp_path, usual, other)


@pytest.mark.usefixtures("silent")
def test_a_wild_row_that_the_model_warns_of(observe: Observer, tmp_path: Path) -> None:
    """Needs Gate._sums_at to be silent: warnings of the user's model, at a private row, are as private as the row."""

    class Outspoken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if float(x.abs().max()) > 1e20:
                warnings.warn(f"large: {float(x.abs().max())}", stacklevel=2)
            return super().forward(x)

    def of(data: Any) -> Act:
        def act(folder: Path) -> object:
            torch.manual_seed(0)
            return sd.train(
                Outspoken(6, 3), cross_entropy, data, method="dp-sgd", epochs=2, batch_size=15, seed=4,
                noise_multiplier=1.0, delta=1e-3, accountant="rdp", progress=False, out=folder,
            ).epsilon  # fmt: skip

        return act

    data = rows_for("mlp")
    check(observe, tmp_path, of(data), of(changed(data, 1e30)))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("method", "wild"), in_turn(["dp-sgd", "adadp", "oso", "quantile", "dp-ftrl"], ["huge", "nan", "label"])
)
def test_a_wild_row_through_a_resume(observe: Observer, tmp_path: Path, method: str, wild: str) -> None:
    """Fails for labels until gradients/engine.py is mended."""
    data, settings = rows_for("mlp"), {"method": METHODS.get(method, method), "epochs": 4}
    usual, other = (partial(start, rows, **settings) for rows in (data, WILD[wild](data)))
    check_resumed(observe, tmp_path, usual, other, step=5)


@pytest.mark.usefixtures("silent")
def test_a_wild_row_and_a_kept_checkpoint(observe: Observer, tmp_path: Path) -> None:
    data = rows_for("shared")
    usual, other = (
        start(rows, "shared", keep_checkpoint=True, sampling="fixed-order")
        for rows in (data, changed(data, 1e6))
    )  # needs gradients/engine.py
    check(observe, tmp_path, usual, other)


# Federated --------------------------------------------------------------------------------------------------

CLIENTS, BAD = 8, 3
PARTS = [np.arange(i * 6, i * 6 + 6) for i in range(CLIENTS)]
SPARE = np.arange(CLIENTS * 6, CLIENTS * 6 + 60)  # rows of nobody, so that the number of rows stays


def federated_rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(CLIENTS * 6 + 60, 6, generator=generator)
    return x, torch.randint(0, 3, (len(x),), generator=generator)


def population(trouble: str | None) -> Population:
    """Eight clients of six rows, one of which is in trouble."""
    x, y = federated_rows()
    mine = PARTS[BAD]
    if trouble in ("huge", "nan", "infinite"):
        x[mine] = {"huge": 1e30, "nan": NAN, "infinite": INF}[trouble]
    if trouble == "label":
        y[mine[0]] = 7
    if trouble == "nobody":
        mine = np.zeros(0, dtype=np.int64)
    if trouble == "many rows":
        mine = np.concatenate([mine, SPARE])
    if trouble == "outside":
        mine = mine + 10**6

    def rows(client: int) -> np.ndarray[Any, Any]:
        if client != BAD:
            return PARTS[client]
        if trouble == "raises":
            raise OSError("the disk of client 4217 is gone")
        if trouble == "exits":
            raise SystemExit("client 4217 has had enough")
        if trouble == "warns":
            warnings.warn("client 4217 is odd", stacklevel=1)
        return mine

    return Population(as_examples((x, y)), CLIENTS, rows, 6.0)


TROUBLES = ["huge", "nan", "infinite", "label", "nobody", "many rows", "outside", "raises", "exits", "warns"]


def united(trouble: str | None, **settings: Any) -> Act:
    usual: dict[str, Any] = {
        "rounds": 4, "per_round": 5, "local_epochs": 2, "batch_size": 3, "noise_multiplier": 1.0, "delta": 1e-2,
        "seed": 4, "accountant": "rdp", "progress": False, "engine": "looped", "workers": 1, "public_examples": 6,
        "test": tuple(part[:9] for part in federated_rows()),
    }  # fmt: skip

    def act(folder: Path) -> object:
        data = settings.get("data") or population(trouble)
        rest = {name: value for name, value in settings.items() if name != "data"}
        run = federate(model_of("mlp"), cross_entropy, data, **{**usual, **rest}, out=folder)
        return run.epsilon, run.metrics, without_times(run.summary), without_times(run.certificate)

    return act


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("engine", ["looped", "stacked"])
def test_a_wild_client(observe: Observer, tmp_path: Path, trouble: str, engine: str) -> None:
    """Clients whose rows warn or exit when asked for need setup.py's part, which asks them by itself."""
    check(
        observe,
        tmp_path,
        united(None, engine=engine),
        united(trouble, engine=engine),
        name=("clients", engine),
    )


FEDERATIONS: dict[str, dict[str, Any]] = {
    "adaptive clients": {"local": "adadp", "algorithm": "fedavg"},
    "adabest": {"algorithm": "adabest"},
    "scaffold in a file": {"algorithm": "scaffold", "store": "file"},
    "tree noise": {"noise": sd.Tree()},
    "two workers": {"workers": 2},
    "late ones": {"patience": 20.0},
    "dropping out": {"conditions": sd.Conditions(drop_out=0.3)},
    "a progress bar": {"progress": True},
    "fixed threshold": {"clip": sd.Fixed(0.5)},
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("kind", "trouble"), in_turn([*FEDERATIONS, *FEDERATIONS], ["nan", "raises", "nobody", "many rows"])
)
def test_a_wild_client_whatever_the_federation(
    observe: Observer, tmp_path: Path, kind: str, trouble: str
) -> None:
    usual, other = (united(which, **FEDERATIONS[kind]) for which in (None, trouble))
    check(observe, tmp_path, usual, other, name=("federations", kind))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", ["raises", "exits", "warns", "prints nothing but a wrong shape"])
def test_a_wild_client_with_a_loop_of_its_own(
    observe: Observer, tmp_path: Path, how: str, workers: int
) -> None:
    def loop(theta: Tensor, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        if bool((x > 1e20).any()):
            if how == "raises":
                raise KeyError("client 4217")
            if how == "exits":
                sys.exit("client 4217")
            if how == "warns":
                warnings.warn("client 4217", stacklevel=1)
            return theta[:-1]
        return theta + 0.01 * x.mean()

    usual, other = (united(which, local=OwnLoop(loop), workers=workers) for which in (None, "huge"))
    check(observe, tmp_path, usual, other)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("more", [[], SPARE.tolist()], ids=["an empty client", "a client with many rows"])
def test_clients_given_as_lists(observe: Observer, tmp_path: Path, more: list[int]) -> None:
    """Needs setup.py's part of finding 6: run.json holds the row numbers of every client."""
    lists = [part.tolist() for part in PARTS]
    odd = [*lists[:BAD], lists[BAD] + more if more else [], *lists[BAD + 1 :]]
    usual, other = (united(None, data=federated_rows(), partition=parts) for parts in (lists, odd))
    check(observe, tmp_path, usual, other)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("trouble", "kind"),
    in_turn(
        ["nan", "raises", "nobody", "many rows", "nan", "raises"],
        ["plain", "adabest", "tree noise", "adabest"],
    ),
)
def test_a_wild_client_through_a_resume(observe: Observer, tmp_path: Path, trouble: str, kind: str) -> None:
    usual, other = (partial(united, which, **FEDERATIONS.get(kind, {})) for which in (None, trouble))
    check_resumed(observe, tmp_path, usual, other, step=3)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("trouble", ["many rows"])
@pytest.mark.parametrize("kind", ["adabest", "scaffold in a file"])
def test_a_wild_client_and_a_kept_checkpoint(
    observe: Observer, tmp_path: Path, kind: str, trouble: str
) -> None:
    """Not one that fails: a round in which somebody failed is saved at once, lest a resume comes to another sum. That
    shows in the checkpoint and nowhere else, which is for the owner, as are the key and the exact sums beside it."""
    usual, other = (united(which, keep_checkpoint=True, **FEDERATIONS[kind]) for which in (None, trouble))
    check(observe, tmp_path, usual, other)


# The command line -------------------------------------------------------------------------------------------

PRICE = ["--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp", "--seed", "4"]
TRAIN = ["train", "own.npz", "--model", "mlp:5", "--epochs", "3", "--batch-size", "15", *PRICE]
FEDERATE = [
    "federate", "own.npz", "--model", "mlp:5", "--clients", "6", "--per-round", "3", "--rounds", "3",
    "--batch-size", "3", "--local-epochs", "1", "--engine", "looped", "--workers", "1", *PRICE,
]  # fmt: skip


def command(monkeypatch: pytest.MonkeyPatch, rows: tuple[Tensor, Tensor], *arguments: str) -> Act:
    """The command in a folder that holds these rows; the figure, a second's work, is drawn in one test only."""

    def act(folder: Path) -> object:
        home = folder.with_name(f"home-{folder.name}")
        home.mkdir(exist_ok=True)
        x, y = (part.numpy() for part in rows)
        tx, ty = (part[:9].numpy() for part in rows_for("mlp"))
        np.savez(home / "own.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
        with monkeypatch.context() as patch:
            patch.chdir(home)
            patch.delenv("SORDINO_DATA", raising=False)
            if "--figure" in arguments:
                patch.setattr("sordino.runs.closing.drawn", drawn)
            given = [each for each in arguments if each != "--figure"]
            code = sordino(patch, *given, "--classes", "3", "--out", str(folder))
        if code:
            raise ValueError(f"exit code {code}")
        return code

    return act


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("arguments", "wild"),
    in_turn(
        [
            [*TRAIN, "--method", "dp-sgd"],
            [*TRAIN, "--method", "auto", "--json"],
            [*TRAIN, "--method", "dp-ftrl"],
            FEDERATE,
            [*FEDERATE, "--json", "--local", "adadp"],
        ],
        ["huge", "nan", "constant"],
    ),
    ids=["dp-sgd", "auto, json", "dp-ftrl", "federate", "federate, json"],
)
def test_a_wild_row_at_the_command_line(
    observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], wild: str
) -> None:
    data = rows_for("mlp")
    usual, other = (command(monkeypatch, rows, *arguments) for rows in (data, WILD[wild](data)))
    check(observe, tmp_path, usual, other, name=("commands", *arguments))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("arguments", [TRAIN, FEDERATE], ids=["train", "federate"])
def test_a_wild_row_in_the_figure(
    observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    data = rows_for("mlp")
    usual, other = (command(monkeypatch, rows, *arguments, "--figure") for rows in (data, changed(data, NAN)))
    check(observe, tmp_path, usual, other)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("arguments", [TRAIN, FEDERATE], ids=["train", "federate"])
def test_a_wild_row_at_the_command_line_through_a_resume(
    observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Interrupted by Ctrl-C, and then resumed."""
    data, seen = rows_for("mlp"), []
    for name, rows in (("usual", data), ("wild", changed(data, NAN))):
        with cut(2, KeyboardInterrupt):
            half = observe(command(monkeypatch, rows, *arguments), tmp_path / name)
        assert half.outcome == "raised ValueError: exit code 2"
        assert "interrupted" in half.err
        seen.append([half, observe(command(monkeypatch, rows, *arguments, "--resume"), tmp_path / name)])
    assert seen[0][1].outcome == "returned 0"
    assert differences(seen[0][0], seen[1][0]) == []
    assert differences(seen[0][1], seen[1][1]) == []


# That the comparison can fail -------------------------------------------------------------------------------


def leaks(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Put something of the private rows where anybody sees it."""
    real = ExampleGate._sums_at

    def leaky(self: Any, *args: Any) -> Any:
        largest = float(self.shares.examples.take(torch.arange(ROWS))[0].abs().max())
        if how == "a warning":
            warnings.warn(f"the largest is {largest}", stacklevel=1)
        elif how == "stdout":
            print(largest)
        elif how == "stderr":
            print(largest, file=sys.stderr)
        elif how == "an error" and largest > 50:
            raise ValueError("that is too large")
        elif how == "microbatch in run.json":
            self.engine.microbatch = 7 if largest > 50 else 8
        elif how == "another file" and largest > 50:
            (written[0] / ".large").touch()
        elif how == "a mode" and largest > 50:
            (written[0] / "history.jsonl").chmod(0o600)
        return real(self, *args)

    written: list[Path] = []
    create = RunDirectory.create

    def created(self: RunDirectory) -> None:
        create(self)
        written[:] = [self.path]

    monkeypatch.setattr(RunDirectory, "create", created)
    monkeypatch.setattr(ExampleGate, "_sums_at", leaky)


LEAKS = [
    "a warning", "stdout", "stderr", "an error", "microbatch in run.json", "another file", "a mode"
]  # fmt: skip


@pytest.mark.parametrize("how", LEAKS)
def test_a_leak_is_seen(observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    leaks(monkeypatch, how)
    monkeypatch.setattr(ExampleGate, "_sums_at", partial_zeros(ExampleGate._sums_at))
    data = rows_for("mlp")
    one, same, other = (
        observe(start(rows), tmp_path / name)
        for rows, name in ((data, "one"), (data, "same"), (changed(data, 90.0), "other"))
    )
    assert differences(one, same) == []
    assert differences(one, other) != []


@pytest.mark.parametrize("name", ["run.json", "certificate.json"])
def test_a_value_in_a_file_is_seen(
    observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: None, name: str
) -> None:
    real = RunDirectory.write_json

    def with_more(self: RunDirectory, file: str, content: dict[str, Any]) -> None:
        real(self, file, {**content, "largest": largest[0]} if file == name else content)

    monkeypatch.setattr(RunDirectory, "write_json", with_more)
    seen, data = list[Seen](), rows_for("mlp")
    for rows in (data, changed(data, 0.0)):
        largest = [float(rows[0][UNIT].max())]
        seen.append(observe(start(rows), tmp_path / str(len(seen))))
    found = differences(*seen)
    assert len(found) == 1
    assert found[0].startswith(name)


def test_the_signal_itself_is_seen_where_it_is_not_replaced(observe: Observer, tmp_path: Path) -> None:
    data = rows_for("mlp")
    one, other = (
        observe(start(rows), tmp_path / name) for rows, name in ((data, "one"), (changed(data, 1e3), "other"))
    )
    assert any(each.startswith("model.safetensors") for each in differences(one, other))
    one, other = (observe(united(which), tmp_path / f"united {which}") for which in (None, "nan"))
    assert any(each.startswith("model.safetensors") for each in differences(one, other))


def test_a_client_that_fails_is_named_where_there_is_no_privacy(observe: Observer, tmp_path: Path) -> None:
    """So there is something that privacy has to hide."""
    public = {"noise_multiplier": None, "delta": None, "public_examples": None, "per_round": 8}
    for trouble, said in (
        ("raises", "the disk of client 4217"),
        ("nobody", "no rows"),
        ("nan", "not finite"),
    ):
        seen = observe(united(trouble, **public), tmp_path / trouble)
        assert said in "".join(seen.files["history.jsonl"][1])


def test_differences_are_told_one_by_one() -> None:
    seen = Seen("returned 0", "", "", [], {"run.json": (0o644, "{}")})
    assert differences(seen, seen) == []
    assert len(differences(seen, replace(seen, outcome="returned 2", err="x", warned=["y"], files={}))) == 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Tables -----------------------------------------------------------------------------------------------------

TABLE_SCHEMA = """
[target]
name = "y"
labels = ["no", "yes"]
[[column]]
name = "age"
kind = "number"
low = 0
high = 100
[[column]]
name = "job"
kind = "category"
values = ["a", "b"]
[[column]]
name = "city"
kind = "category"
buckets = 4
"""
TABLE_LINES = [f"{n % 90},{'abc'[n % 3]},c{n % 5},{'no' if n % 2 else 'yes'},u{n % 10}" for n in range(ROWS)]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("unit", ["example", "user"])
@pytest.mark.parametrize(
    "line",
    [
        "1e999,zzz,Atlantis,no,u2",
        "12,a,c2,what,u2",
        ",,,,u2",
        '"12"x,a,c2,no,u2',
        "",
        "only one cell",
        "1,2,3,4,5,6,7,8",
        '"never closed,a,c2,no,u2',
        "\udcff\udcfe,\udcff,\udcff,\udcff,u2",
        "x" * 100_000 + ",a,c2,no,u2",
    ],
)
def test_a_row_of_a_table_shows_nowhere(
    line: str, unit: str, observe: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that is no number, a label that there is not, a row nulled or ragged, a quote, bytes that are no text."""
    if unit == "user" and not line.endswith(",u2"):
        pytest.skip("without its id it is another user's row that is gone, and no neighbour")
    (tmp_path / "schema.toml").write_text(TABLE_SCHEMA)
    people = tmp_path / "people.csv"

    def act(lines: list[str], folder: Path) -> object:
        people.write_bytes("\n".join(["age,job,city,y,id", *lines, ""]).encode(errors="surrogateescape"))
        by_user = ["--unit", "user", "--user-column", "id"] if unit == "user" else []
        command = [
            "train",
            str(people),
            "--target",
            "y",
            "--epsilon",
            "3",
            "--delta",
            "1e-3",
            "--epochs",
            "3",
        ]
        return sordino(
            monkeypatch, *command, "--seed", "1", "--out", str(folder), "--model", "linear", *by_user
        )

    wild = [line if n == UNIT else each for n, each in enumerate(TABLE_LINES)]
    check(observe, tmp_path, partial(act, TABLE_LINES), partial(act, wild), f"table by {unit}")
    assert "inputs.json" in files_of(tmp_path / "wild")
