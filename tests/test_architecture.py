"""Imports point one way, and the export list is exact."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import sordino
from mutations import MUTATIONS, misplaced

SOURCE = Path(sordino.__file__).parent
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# Each part may import itself and the parts before it.
ORDER = [
    "registry",
    "named",
    "described",
    "warn",
    "imported",
    "cache",
    "ranks",
    "vector",
    "privacy",
    "ledger",
    "verifying",
    "data",
    "gradients",
    "hypergradient",
    "clipping",
    "noise",
    "steps",
    "rates",
    "models",
    "features",
    "tasks",
    "terms",
    "gate",
    "least_squares",
    "standardise",
    "methods",
    "defaults",
    "report",
    "runs",
    "live",
    "descent",
    "together",
    "training",
    "trained",
    "exporting",
    "own_loop",
    "estimators",
    "tuning",
    "federated",
    "network",
    "auditing",
    "run_auditing",
    "recipes",
    "cli",
]


# Sentences about more than one module; every other test file has the name of a module, a package, or several modules.
ACROSS = {
    "architecture": "which part knows which",
    "bounds_as_computed": "no row moves a sum by more than its threshold, in the arithmetic in which it is added",
    "data_mutated": "damaged files: one line, no traceback, no cell quoted",
    "docs": "what README and pages say is so",
    "federate": "federated training as a whole",
    "gradients_rules": "every layer against a loop over single examples",
    "gradients_zoo": "whole models against that loop",
    "kill_and_resume": "a run killed at any time goes on bit for bit",
    "ledger_kills": "runs killed at any time are counted with all that they released",
    "method_oracles": "whole methods against plain loops",
    "network_hosts": "what the page about networks says, between hosts of their own",
    "nothing_visible": "nothing a row does outside the gate is seen",
    "own_data": "from a file of one's own to a page that can be shown",
    "planted_bugs": "an audit finds the bugs that others shipped",
    "quotes_nothing": "no message quotes a value of a row",
    "regret": "the theorems of DP-FTRL",
    "rows_do_not_move_others": "no row changes how another is computed",
    "walk": "a batch and a client update go the way that is described",
    "who_reads_rows": "private rows are read where it is said, and nowhere else",
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        found |= {name.split(".")[1] for name in names if name.startswith("sordino.")}
        assert "sordino" not in names, f"{path.name} imports the whole package"
    return found


def test_imports_point_one_way() -> None:
    wrong = {}
    for path in set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py", SOURCE / "__main__.py"}:
        allowed = set(ORDER[: ORDER.index(part_of(path)) + 1])
        if beyond := imported_parts(path) - allowed:
            wrong[str(path.relative_to(SOURCE))] = sorted(beyond)
    assert wrong == {}


def test_every_part_has_its_place() -> None:
    parts = {part_of(p) for p in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert parts == set(ORDER)


def test_the_order_is_the_one_that_is_described() -> None:
    page = (BENCHMARKS.parent / "docs" / "design.md").read_text()
    block = page.split("```text\n")[1].split("```")[0]
    names = [name for line in block.splitlines() for name in line.split("  ")[0].split(", ")]
    assert names == ORDER


def test_no_function_is_too_long_to_be_read_at_once() -> None:
    hallway = runpy.run_path(str(BENCHMARKS / "hallway.py"))
    found = hallway["functions"](BENCHMARKS.parent)
    assert [f"{each.name} in {each.file}: {each.code}" for each in found if each.too_long] == []
    assert any(each.name == "train" and each.shared for each in found), "shared keywords are counted"
    for way in (hallway["BATCH"], hallway["CLIENT"]):
        hallway["table"](way, [], found)  # or it says which function is gone


def test_the_export_list_is_exact_and_sorted() -> None:
    assert list(sordino._HOMES) == sordino.__all__ == sorted(sordino.__all__)
    for name in sordino.__all__:
        value = getattr(sordino, name)
        assert value.__name__ == name
        assert value.__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = sordino.nothing_such  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_there_are() -> None:
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert seen == sordino._HOMES


def test_the_version_is_that_of_the_installed_package() -> None:
    assert sordino.__version__ == version("sordino")


def test_train_is_the_function_however_it_is_reached() -> None:
    code = "import sordino.training, sordino; assert callable(sordino.train); from sordino import train"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_does_not_load_torch() -> None:
    code = "import sys, sordino.cli.main; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_loads_slowly_is_loaded_when_it_is_needed() -> None:
    code = """
import sys
from sordino import data, methods, models, training
assert not {"scipy", "dp_accounting", "sklearn", "matplotlib", "sympy"} & set(sys.modules)
import torch
digits = data.load("digits")
loss = torch.nn.CrossEntropyLoss(reduction="none")
model = models.build_model("mlp:8", digits.input_shape, digits.classes)
paid = {"noise_multiplier": 1.0, "delta": 1e-5, "accountant": "rdp"}
training.train(model, loss, digits.train, epochs=0.1, progress=False, **paid)
assert not {"sklearn", "matplotlib", "sympy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_test_file_is_named_after_what_it_tests() -> None:
    """`test_noise_tree.py` is about `noise/tree.py`; `test_recipes_adadp.py` about `recipes/adadp_*.py`."""
    modules = {"_".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    modules |= {"_".join(path.relative_to(SOURCE).parts) for path in SOURCE.rglob("*") if path.is_dir()}
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    nameless = {
        name
        for name in tested - set(ACROSS)
        if not any(f"{module}_".startswith(f"{name}_") for module in modules)
    }
    assert nameless == set()
    assert set(ACROSS) <= tested


def test_every_mutation_still_has_its_place() -> None:
    """`python tests/mutations.py` shows that the tests notice each of them."""
    assert misplaced() == []
    parts = {part_of(SOURCE / mutation.file) for mutation in MUTATIONS}
    assert set(ORDER) - parts <= {"defaults", "training"}
    names = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert {test.partition("::")[0] for mutation in MUTATIONS for test in mutation.tests} <= names
