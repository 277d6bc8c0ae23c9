"""What has a name: every line of every table is loaded, checked, shown and trained with."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sordino
from conftest import cross_entropy
from conftest import sordino as command
from sordino import named, train
from sordino.clipping import ClippingPolicy
from sordino.data.partitions import Partition
from sordino.federated.algorithms import Algorithm
from sordino.federated.local import LocalRule
from sordino.gradients.engine import Norms
from sordino.methods import Method, method, method_named
from sordino.models import build_model
from sordino.named import CLIPS, DATA_SETS, METHODS, MODELS, NOISES, PARTITIONS, RATES, SERVERS, STEPS, TABLES
from sordino.noise import Mechanism
from sordino.rates import RateController
from sordino.registry import Entry, Registry, value_of
from sordino.steps import StepRule

ROOT = Path(sordino.__file__).parents[2]
LINES = [(title, name) for title, table in TABLES.items() for name in table]
PARTS: dict[type[Any], list[Registry]] = {
    Algorithm: [named.ALGORITHMS],
    ClippingPolicy: [CLIPS],
    LocalRule: [named.LOCAL_RULES],
    Mechanism: [NOISES],
    Partition: [PARTITIONS],
    RateController: [RATES],
    StepRule: [STEPS, SERVERS],
}


def made(table: Registry, name: str) -> Any:
    """As its example says where it needs a value."""
    example = table.entries[name].example
    return table.parsed(f"{name}:{example}" if example else name)


@pytest.mark.parametrize(("title", "name"), LINES)
def test_a_line_is_true(title: str, name: str) -> None:
    table = TABLES[title]
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name)
    entry, thing = table.entries[name], table[name]
    assert 0 < len(entry.about) <= 110
    assert not entry.about.endswith(".")
    settings = table.settings(name) if callable(thing) else {}
    assert not entry.takes or entry.takes in settings
    assert f"`{table.written(name)}` | {entry.about} |" in table.markdown()


@pytest.mark.parametrize("title", TABLES)
def test_a_name_that_is_not_there_gets_one_line_that_says_what_is(title: str) -> None:
    table = TABLES[title]
    message = table.unknown("no such thing")
    assert "\n" not in message
    assert "'no such thing'" in message
    assert all(table.written(name) in message for name in table)
    first = next(iter(table))
    assert table.unknown(first[:-1]).endswith("?")
    with pytest.raises(ValueError, match="no such thing"):
        table.named("no such thing")


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_every_part_in_the_source_has_a_name(kind: type[Any]) -> None:
    for module in pkgutil.walk_packages(sordino.__path__, "sordino."):
        if not module.name.startswith("sordino.recipes"):
            importlib.import_module(module.name)
    there, waiting = set(), [kind]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        there |= {each for each in below if each.__module__.startswith("sordino.")}
    public = {each for each in there if not inspect.isabstract(each) and not each.__name__.startswith("_")}
    assert public == {getattr(table[name], "func", table[name]) for table in PARTS[kind] for name in table}


CHECKED = [
    (title, name, setting)
    for title in (
        "methods",
        "algorithms",
        "servers",
        "local rules",
        "clipping policies",
        "step rules",
        "partitions",
    )
    for name in TABLES[title]
    for setting, parameter in TABLES[title].settings(name).items()
    if str(parameter.annotation) in ("float", "float | None", "bool")
]


@pytest.mark.parametrize(("title", "name", "setting"), CHECKED)
def test_settings_are_checked_by_their_types(title: str, name: str, setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting} must be (a number|true or false).*, not 'much'"):
        TABLES[title].named(name, {setting: "much"})
    with pytest.raises(ValueError, match=rf"{setting} must be (a number|true or false).*, not \[1, 2\]"):
        TABLES[title].named(name, {setting: [1, 2]})
    with pytest.raises(ValueError, match=rf"{name} has no setting 'no_{setting}': it has .*{setting}"):
        TABLES[title].named(name, {f"no_{setting}": 1})


def test_what_a_name_may_be_written_with() -> None:
    assert CLIPS.parsed("quantile") == CLIPS.named("quantile")
    assert CLIPS.parsed("quantile:0.8,threshold=2") == CLIPS.named(
        "quantile", {"target_quantile": 0.8, "threshold": 2}
    )
    assert RATES.parsed("scheduled:0.1,shape=linear").shape == "linear"
    assert NOISES.parsed("tree:none,efficient=false") == NOISES.named(
        "tree", {"restart_every": None, "efficient": False}
    )
    assert [value_of(text) for text in ("1", "1.5", ".5", "true", "None", "sign")] == [
        1,
        1.5,
        0.5,
        True,
        None,
        "sign",
    ]
    composed = method_named(
        "composed", {"clip": "quantile:0.8", "step": "extrapolation", "rate": "tolerance"}
    )
    assert composed == method(clip="quantile:0.8", step="extrapolation", rate="tolerance")
    for text, message in [
        ("unclipped:3", "unclipped takes no number: write unclipped"),
        ("fixed", "fixed needs its threshold: write it as in fixed:1.0"),
        ("fixed:much", "'much' in the clipping policy 'fixed:much' is no number"),
        (
            "online,sped=3",
            "there is no clipping policy 'online,sped=3': online has the settings threshold, speed",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            CLIPS.parsed(text)


def test_how_a_price_is_found_cannot_be_set() -> None:
    """A name with a number behind it must not turn into a price that is none."""
    with pytest.raises(ValueError, match="there is no participation"):
        named.PARTICIPATIONS.parsed("shuffled,assume_poisson=true", 10, 100)
    assert not any("assume_poisson" in named.SAMPLINGS.settings(name) for name in named.SAMPLINGS)


# What follows from a line: training, bounds, help, documents


def fitting(part: str, name: str) -> Method:
    """The part in the first composition that takes it."""
    tables = {"clip": CLIPS, "step": STEPS, "rate": RATES, "noise": NOISES}
    wanted = made(tables[part], name)
    for step in STEPS:
        for rate in RATES:
            parts = {
                "clip": "normalised",
                "noise": "gaussian",
                "step": step,
                "rate": made(RATES, rate),
                part: wanted,
            }
            try:
                return method(**parts)
            except ValueError:
                continue
    raise AssertionError(f"{name} goes with nothing")


@pytest.mark.parametrize(
    ("part", "name"),
    [(part, name) for part, table in zip(("clip", "step", "rate", "noise"), (CLIPS, STEPS, RATES, NOISES), strict=True)
     for name in table],
)  # fmt: skip
def test_a_part_that_has_a_name_trains(part: str, name: str, small_model: nn.Module, toy: Any) -> None:
    composed = fitting(part, name)
    price: dict[str, Any] = (
        {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"} if composed.private else {}
    )
    run = train(small_model, cross_entropy, toy, method=composed, epochs=2, batch_size=20, seed=1, **price)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert (run.epsilon < float("inf")) == composed.private
    assert run.summary["method"][part]["kind"] == type(getattr(composed, part)).__name__


@pytest.mark.parametrize("name", CLIPS)
def test_no_unit_is_more_than_the_sensitivity(name: str) -> None:
    policy = made(CLIPS, name)
    chance = torch.Generator().manual_seed(3)
    squares = torch.randn(3, 500, generator=chance).exp().pow(4)
    squares[:, :3] = torch.tensor([0.0, 1e-20, 1e20])
    names = ("a.weight", "a.bias", "b.weight")
    norms = Norms(names, squares, squares.sum(0).sqrt())
    state = policy.start(names)
    weights = policy.weights(norms, state)[0].expand(3, -1)
    clipped = (weights.double().square() * squares.double()).sum(0).sqrt()
    assert policy.bounds == (policy.sensitivity(state) < float("inf"))
    assert bool((clipped <= policy.sensitivity(state) * (1 + 1e-6)).all())


def test_what_is_said_of_a_method_before_it_is_loaded_is_true() -> None:
    assert {name for name, e in METHODS.entries.items() if "public" in e.facts} == {
        name for name in METHODS if not method_named(name).private
    }


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_model_of_a_data_set_is_one_that_has_a_name(name: str) -> None:
    spec = DATA_SETS.entries[name].facts.get("model", "mlp")
    assert spec.partition(":")[0] in MODELS
    shape = (20,) if spec == "lstm" else (1, 28, 28)
    assert isinstance(build_model(spec, shape, 10), nn.Module)


@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        (["train"], ["data sets", "methods", "models", "samplings", "accountants"]),
        (["federate"], ["data sets", "algorithms", "servers", "local rules", "engines", "partitions", "participations",
                        "models", "accountants"]),
        (["audit", "gate"], []),
        (["audit", "run"], ["data sets", "models", "algorithms", "partitions", "servers", "accountants"]),
        (["budget", "epsilon"], ["accountants"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_names_all_there_is(
    monkeypatch: Any, capsys: Any, arguments: list[str], titles: list[str]
) -> None:
    assert command(monkeypatch, *arguments, "--help") == 0
    shown = re.sub(r"\s", "", capsys.readouterr().out)
    for title in titles:
        assert re.sub(r"\s", "", TABLES[title].help()) in shown


def test_a_list_of_names_needs_no_torch() -> None:
    code = (
        "import sys; from sordino.named import TABLES; [table.help() for table in TABLES.values()];"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_thing_of_ones_own_gets_a_name(monkeypatch: Any) -> None:
    def mine(learning_rate: float = 0.1) -> Method:
        return method_named("dp-sgd", {"learning_rate": learning_rate})

    monkeypatch.setitem(METHODS.entries, "mine", Entry(mine, "my own"))
    assert method_named("mine", {"learning_rate": 3}).rate.learning_rate == 3  # type: ignore[attr-defined]
    assert "mine (my own)" in METHODS.help()


PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tables_in_the_documents_are_those_of_the_registry(page: Path) -> None:
    """`python -m sordino.named TITLE` prints what belongs between the marks."""
    for title, text in re.findall(r"<!-- names: (.*?) -->\n(.*?)\n<!-- end -->", page.read_text(), re.S):
        assert text.strip() == TABLES[title].markdown()


def test_tables_are_printed_with_their_marks() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "sordino.named", "methods"], check=True, capture_output=True, text=True
    ).stdout
    assert printed.strip() == f"<!-- names: methods -->\n{METHODS.markdown()}\n<!-- end -->"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("lr", "learning_rate"), ("learning_rat", "learning_rate"), ("max_grad_norm", "threshold")],
)
def test_an_unknown_setting_gets_a_hint(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"dp-sgd has no setting '{given}': .*; did you mean {meant}\?$"):
        METHODS.named("dp-sgd", {given: 0.1})
