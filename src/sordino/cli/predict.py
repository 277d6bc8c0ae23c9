"""`sordino predict`, `evaluate` and `export`: a finished run put to use."""

from __future__ import annotations

import contextlib
import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.common import warnings_in_one_line
from sordino.cli.options import AsJson

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.trained import Trained

# torch loads slowly: it is imported inside the commands, so that --help is quick.

_WIDEST = 12  # classes in a table of a terminal

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")]
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="Raw rows, like those that were trained on; or the name of a named set."
    ),
]
Format = Annotated[
    str, typer.Option("--format", help="safetensors (weights), onnx or torch-export (network and weights).")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Import a model or features that the run names as MODULE:CALLABLE."),
]


def predict(
    run: RunFolder,
    file: File,
    proba: Annotated[bool, typer.Option("--proba", help="A probability for each class, too.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this .csv or .parquet file, or to - for the terminal.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Predict: a line of CSV for each row of the file, in its order; empty for a row that cannot be read. Of images,
    the first column is the file."""
    if out is not None and str(out) != "-" and out.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"--out takes a .csv or a .parquet file, not {out}")
    with warnings_in_one_line():
        trained = _loaded(run, trust_code)
        if proba and not trained.classes:
            raise ValueError("this model predicts a number, which has no probability: leave out --proba")
        names = trained.names(file)
        columns = ["prediction", *(f"probability of {label}" for label in trained.classes if proba)]
        lines = (_lines_of(trained, scores, proba) for scores in trained.in_batches(file))
        batches = lines if names is None else _named(names, lines)
        columns = columns if names is None else ["file", *columns]
        file_out = None if out is None or str(out) == "-" else out
        rows = _written(batches, columns, bool(trained.classes), file_out, as_json)
    if as_json:
        _print_json({"run": str(run), "file": file, **rows})


def evaluate(run: RunFolder, file: File, trust_code: TrustCode = False, as_json: AsJson = False) -> None:
    """How good the model is on rows whose targets are known. No guarantee covers it."""
    with warnings_in_one_line():
        trained = _loaded(run, trust_code)
        found = trained.evaluate(file)
    if as_json:
        return _print_json({"run": str(run), "file": file, **found})
    beside = "   (not covered by any guarantee: these rows are somebody's too)"
    for name, value in found.items():
        if isinstance(value, float):
            shown = f"{value:.2%}" if name == "accuracy" else f"{value:.6g}"
            print(f"{name.replace('_', ' '):24s} {shown}{beside}")
    print(f"{'rows':24s} {found['rows']}")
    for name in ("left_out", "unanswered"):
        if found.get(name):
            print(f"{name.replace('_', ' '):24s} {found[name]}")
    if "confusion" in found:
        _print_confusion(found["classes"], found["confusion"])


def export(
    run: RunFolder,
    format: Format = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="The file; by default exported.SUFFIX in the run's directory.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Write the model as one file for other tools, with its schema, labels and the certificate's digest inside."""
    from sordino.exporting import SUFFIXES
    from sordino.exporting import export as write

    if format not in SUFFIXES:
        raise ValueError(f"there is no format {format!r}: there are {', '.join(SUFFIXES)}")
    of_suffix = {suffix: name for name, suffix in SUFFIXES.items()}.get(
        "" if out is None else out.suffix, format
    )
    if of_suffix != format:
        raise ValueError(f"{out} would be of format {of_suffix}: give --format {of_suffix}, or another name")
    with warnings_in_one_line():
        path = write(_loaded(run, trust_code), format, out)
    if as_json:
        return _print_json({"run": str(run), "format": format, "file": str(path)})
    print(path)


def _loaded(run: Path, trust_code: bool) -> Trained:
    from sordino.trained import load

    return load(run, trust_code=trust_code)


def _print_json(said: dict[str, Any]) -> None:
    from sordino.runs import to_json

    print(to_json(said))


def _lines_of(trained: Trained, scores: Tensor, proba: bool) -> Iterator[list[Any]]:
    from sordino.trained import probabilities

    answers = trained.answers(scores)
    beside = probabilities(scores).tolist() if proba else [[]] * len(answers)
    for answer, each in zip(answers, beside, strict=True):
        yield [answer, *(None if math.isnan(value) else value for value in each)]


def _named(names: list[str], batches: Iterator[Iterator[list[Any]]]) -> Iterator[Iterator[list[Any]]]:
    """Each line behind the name of its row."""
    left = iter(names)
    for batch in batches:
        yield ([next(left), *line] for line in list(batch))


def _written(
    batches: Iterator[Iterator[list[Any]]], columns: list[str], words: bool, out: Path | None, as_json: bool
) -> dict[str, Any]:
    """Lines to where they are wanted, a batch at a time; and what a JSON object says of them."""
    if out is None and as_json:
        lines = [line for batch in batches for line in batch]
        named = {name: [line[place] for line in lines] for place, name in enumerate(columns)}
        return {"rows": len(lines), "columns": named}
    if out is None:
        return {"rows": _csv(batches, columns, sys.stdout)}
    count = 0
    with _replacing(out) as passing:
        if out.suffix.lower() == ".parquet":
            count = _parquet(batches, columns, passing, words)
        else:
            with passing.open("w", encoding="utf-8", newline="") as file:
                count = _csv(batches, columns, file)
    return {"rows": count, "out": str(out)}


def _csv(batches: Iterator[Iterator[list[Any]]], columns: list[str], file: Any) -> int:
    writer, count = csv.writer(file, lineterminator="\n"), 0
    for number, batch in enumerate(batches):
        if number == 0:
            writer.writerow(columns)  # not before: what is refused leaves nothing on stdout
        for line in batch:
            # A lone empty cell would be an empty line, which readers skip.
            writer.writerow(["" if cell is None else cell for cell in line])
            count += 1
    return count


def _parquet(batches: Iterator[Iterator[list[Any]]], columns: list[str], path: Path, words: bool) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = {"file", *(["prediction"] if words else [])}
    kinds = [pa.string() if name in texts else pa.float64() for name in columns]
    schema, count = pa.schema(list(zip(columns, kinds, strict=True))), 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            lines = list(batch)
            table = {name: [line[place] for line in lines] for place, name in enumerate(columns)}
            writer.write_table(pa.table(table, schema=schema))
            count += len(lines)
    return count


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside it, which takes its place when all is written: half a file must not look like a whole one."""
    passing = path.with_name(f".{path.name}.tmp")
    try:
        yield passing
        passing.replace(path)
    finally:
        passing.unlink(missing_ok=True)


def _print_confusion(classes: list[str], confusion: list[list[int]]) -> None:
    if len(classes) > _WIDEST:
        print(f"{'by class':24s} right of all")
        for place, label in enumerate(classes):
            print(f"  {label:22s} {confusion[place][place]} of {sum(confusion[place])}")
        return
    wide = max(4, *(len(label) for label in classes))
    cell = max([wide, *(len(str(count)) for row in confusion for count in row)]) + 2
    print(f"\n{'':{wide}s}  predicted\n{'true':{wide}s}{''.join(f'{label:>{cell}s}' for label in classes)}")
    for label, row in zip(classes, confusion, strict=True):
        print(f"{label:{wide}s}{''.join(f'{count:>{cell}d}' for count in row)}")
