"""How long the functions on the way of a batch and of a client update are, and how many parameters they have.

    git worktree add /tmp/before COMMIT
    python benchmarks/hallway.py --before /tmp/before

Lines are those a function spans in its file, and beside them those without its docstring, by which the limits go:
100 anywhere in `src` outside `recipes/`, and 60 wherever a batch or an update may come by, which is all but the
command line. Parameters are counted without self; shared keywords (`**options: Unpack[RunOptions]`) are added to them.
It ends with 1 if a function is too long.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_LINES, MOST_ON_THE_WAY = 100, 60
LONGEST = 15  # are listed

# File and function, and its name before if it had another.
BATCH = """
training.py train
runs/conductor.py conduct
runs/conductor.py _Score.begin
runs/conductor.py _Score.show
runs/conductor.py _Score.save
descent.py Descent.step
descent.py Descent.field
steps/sgd.py Sgd.step
steps/adam.py Adam.step
steps/adam.py AdamWithoutSecondMoments.step
steps/extrapolation.py Extrapolation.step
steps/ftrl.py Ftrl.step
gate.py Door.__call__
gate.py Door._release
gate.py ExampleGate._sums_at Gate._sums_at
gate.py Shares.sums
gate.py Shares._of_share
gate.py Shares._readable Gate._readable
gate.py Door._noised_gradient
gate.py Door._noised_answers
terms.py Terms.charge
privacy/ledger.py Ledger.charge
data/sampling.py Poisson.units
data/sampling.py Shuffled.units
gradients/engine.py Engine.sums
gradients/engine.py Engine._add_sums
gradients/engine.py Engine._computable_factors
gradients/engine.py Engine._factors
gradients/engine.py Engine._watch
gradients/engine.py Engine._joined
gradients/capture.py Capture.call
gradients/capture.py Capture.watch
gradients/capture.py Capture.backward
gradients/linear.py linear
gradients/convolution.py _watch_convolution
gradients/attention.py multi_head_attention
gradients/factors.py squared_norms
gradients/factors.py join
clipping/fixed.py Fixed.weights
clipping/fixed.py Normalised.weights
clipping/quantile.py Quantile.weights
clipping/online.py Online.weights
noise/independent.py _IndependentReleases.add_
noise/tree.py TreeReleases.add_
noise/gaussian.py GaussianNoise.add_
runs/journal.py ReleaseJournal.record
"""

CLIENT = """
federated/federation.py federate
runs/conductor.py conduct
federated/process.py Rounds.step
federated/aggregate.py PrivateMean.__call__
federated/aggregate.py OpenMean.__call__
gate.py Door._release
federated/user_level.py UserGate._sums_at
federated/simulator.py Simulator.__call__
federated/simulator.py Simulator.delivering
federated/simulator.py Simulator.finished
federated/simulator.py Simulator._stage
federated/rounds.py chunks
federated/pool.py Pool.__call__
federated/rounds.py Workplace.finished
federated/rounds.py Workplace._made_by
federated/rounds.py Workplace._stepped
federated/local.py LocalRule.step
federated/local.py LocalSgd.move
federated/local.py LocalAdam.move
federated/local.py LocalExtrapolation.move
federated/population.py Work.of
federated/population.py Work.batch
federated/engines/stacked.py StackedGradients.__call__
federated/engines/gradients.py mapped
federated/engines/gradients.py looped
federated/algorithms/adabest.py AdaBest.offset
federated/algorithms/adabest.py AdaBest.client_update
federated/algorithms/adabest.py AdaBest.server_update
federated/algorithms/fedavg.py FedAvg.server_update
federated/rounds.py mean_of
federated/store.py ClientStore.read
federated/store.py ClientStore.write_many
federated/store.py ClientStore.commit
"""


@dataclass(frozen=True)
class Function:
    file: str  # below src/sordino
    name: str
    lines: int
    code: int  # lines without the docstring
    parameters: int  # of its own
    shared: int  # keywords it takes as **options

    @property
    def too_long(self) -> bool:
        if self.file.startswith("recipes/"):
            return False
        return self.code > (MOST_LINES if self.file.startswith("cli/") else MOST_ON_THE_WAY)

    def __str__(self) -> str:
        parameters = f"{self.parameters} + {self.shared}" if self.shared else f"{self.parameters}"
        return f"{self.lines} ({self.code}) | {parameters}"


def functions(tree: Path) -> list[Function]:
    """All the functions of a version of Sordino."""
    source = tree / "src" / "sordino"
    files = {
        path.relative_to(source).as_posix(): ast.parse(path.read_text())
        for path in sorted(source.rglob("*.py"))
    }
    shared = _keywords(list(files.values()))
    return [
        _measured(file, name, node, shared)
        for file, parsed in files.items()
        for name, node in _defined(parsed)
    ]


def _defined(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef):
            yield name, child
        yield from _defined(child, name)


def _keywords(files: list[ast.Module]) -> dict[str, int]:
    """How many keywords each class of them has, with those of the classes it extends."""
    classes = {node.name: node for file in files for node in ast.walk(file) if isinstance(node, ast.ClassDef)}

    def count(name: str) -> int:
        if name not in classes:
            return 0
        own = sum(isinstance(line, ast.AnnAssign) for line in classes[name].body)
        return own + sum(count(base.id) for base in classes[name].bases if isinstance(base, ast.Name))

    return {name: count(name) for name in classes if name.endswith("Options")}


def _measured(file: str, name: str, node: ast.FunctionDef, shared: dict[str, int]) -> Function:
    lines = _span(node)
    documented = ast.get_docstring(node) is not None
    given = node.args
    names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
    options = (
        "" if given.kwarg is None or given.kwarg.annotation is None else ast.unparse(given.kwarg.annotation)
    )
    return Function(
        file,
        name,
        lines,
        lines - (_span(node.body[0]) if documented else 0),
        len([each for each in names if each not in ("self", "cls")]),
        shared.get(options.removeprefix("Unpack[").removesuffix("]"), 0),
    )


def _span(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def table(way: str, before: list[Function], now: list[Function]) -> str:
    old, new = ({(each.file, each.name): each for each in some} for some in (before, now))
    rows = [
        "| function | before: lines (code) | parameters | now: lines (code) | parameters |",
        "|---|--:|--:|--:|--:|",
    ]
    for line in way.split("\n")[1:-1]:
        file, name, *moved = line.split()
        if (file, name) not in new:
            raise SystemExit(f"there is no {name} in {file}: mend the list in benchmarks/hallway.py")
        was = old.get((file, moved[0] if moved else name))
        rows.append(f"| `{name}` (`{file}`) | {was or '– | –'} | {new[file, name]} |")
    return "\n".join(rows)


def longest(some: list[Function]) -> str:
    outside = [each for each in some if not each.file.startswith("recipes/")]
    ordered = sorted(outside, key=lambda each: (-each.code, each.file, each.name))
    rows = [f"| `{each.name}` (`{each.file}`) | {each} |" for each in ordered[:LONGEST]]
    return "\n".join(["| function | lines (code) | parameters |", "|---|--:|--:|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="another version of Sordino, checked out")
    before, now = functions(parser.parse_args().before), functions(ROOT)
    print("# The hallway: lines and parameters\n\n    python benchmarks/hallway.py --before BEFORE\n")
    print(
        "Lines a function spans, in brackets those without its docstring; parameters without self, + shared"
    )
    print(
        "keywords. What was not there before was inside `train` or `federate`, or is new. Limits: 100 lines of code,"
    )
    print("and 60 wherever a batch or an update may come by.")
    print(f"\n## The way of a batch\n\n{table(BATCH, before, now)}")
    print(f"\n## The way of a client update\n\n{table(CLIENT, before, now)}")
    print(f"\n## The longest functions outside recipes/, before\n\n{longest(before)}")
    print(f"\n## The longest functions outside recipes/, now\n\n{longest(now)}")
    wrong = [f"{each.name} in {each.file} has {each.code} lines" for each in now if each.too_long]
    if wrong:
        sys.exit("too long: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
