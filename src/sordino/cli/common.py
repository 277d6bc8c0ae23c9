"""What the commands share: settings, budgets, models that fit, warnings in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.named import DATA_SETS
from sordino.registry import value_of

if TYPE_CHECKING:
    from torch import nn

    from sordino.data import Loaded, Schema
    from sordino.privacy import Budget
    from sordino.runs import Run
    from sordino.runs.process import HistoryLogger
    from sordino.tasks import Task

# torch and the accountants load slowly: they are imported inside functions, so that --help is quick.

Lines = Iterable[tuple[str, str]]  # of what is printed at the end: name and value


def run_folder(out: Path | None, name: str, to_the_second: bool = True) -> Path:
    """Where the run goes: as told, or a new folder named after data and time."""
    if out is not None:
        return out
    folder = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S' if to_the_second else '%Y%m%d')}"
    tries = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(each for each in tries if not each.exists())


def initial_model(spec: str, loaded: Loaded, seed: int | None) -> nn.Module:
    """A model that fits the data, its weights drawn from the run's seed or from the system."""
    from sordino.models import drawn_model

    network = drawn_model(spec, loaded.input_shape, loaded.classes, seed)
    check_outputs(network, loaded, spec)
    return network


def about_model(spec: str, loaded: Loaded) -> dict[str, Any]:
    """What run.json says of the model, so that it can be built again."""
    if loaded.inputs is not None:  # which says what goes in and what comes out
        return {"model": spec}
    return {"model": spec, "input_shape": list(loaded.input_shape), "classes": loaded.classes}


def loaded_data(
    data: str,
    classes: int | None,
    features: str | None = None,
    image_size: int | None = None,
    grey: bool = False,
    **table: Any,
) -> Loaded:
    """The data, with features in the place of its rows if any are named; of a table besides what is said about it."""
    from sordino.data import load
    from sordino.data.columns import is_table

    if data in DATA_SETS or not is_table(data):
        table.pop("whole_test", None)  # what other data sets have in store is all there is
        _refuse_flags_of_tables(data, table)
    with warnings_in_one_line():
        how = {"classes": classes, "image_size": image_size, "grey": grey, "progress": True, **table}
        if features is None or features == "none":
            return load(data, **how)
        from sordino.data import Schema
        from sordino.data.reading import schema_beside
        from sordino.features import check_kind, features_named, with_features

        if data not in DATA_SETS and is_table(data):
            schema = table.get("schema") or schema_beside(Path(data).expanduser())
            schema = schema if isinstance(schema, Schema) else Schema.read(schema)
            return load(data, **{**how, "schema": featured_schema(schema, features)})
        chosen = features_named(features)  # before data is read, which takes longer
        is_named = data in DATA_SETS
        texts = (
            is_named and "texts" in DATA_SETS.entries[data].facts and getattr(chosen, "takes", "") == "texts"
        )
        if chosen is not None:
            check_kind(chosen, "texts" if texts else "rows")
        return with_features(load(data, texts=texts, **how), chosen, public=is_named, progress=True)


def _refuse_flags_of_tables(data: str, table: dict[str, Any]) -> None:
    """By the names that they have here, and not by those of Python's keywords."""
    from sordino.data.columns import not_read

    path = Path(data).expanduser()
    if data not in DATA_SETS and path.is_file() and path.suffix.lower() != ".npz":
        raise ValueError(not_read(data, "a .csv, .parquet or .npz file, or a folder of class folders"))
    flags = {"user": "--user-column", "rows_per_user": "--rows-per-user"}
    given = [
        flags.get(name, f"--{name}")
        for name, value in table.items()
        if value is not None and name != "target"
    ]
    if given:
        raise ValueError(f"{data} is no table: leave out {' and '.join(given)}")


def featured_schema(schema: Schema, features: str | None) -> Schema:
    """With these features of its texts; refused where they are no features of a table's."""
    from sordino.features import check_kind, features_named, with_embedding

    chosen = None if features is None else features_named(features)
    if features is None or chosen is None:
        return schema
    check_kind(chosen, "table")
    return with_embedding(schema, features)


def user_of(
    data: str, unit: str, column: str | None, rows_per_user: int | None, schema: Path | None
) -> str | None:
    """The column that says whose a row is, where users are the units."""
    if unit not in ("example", "user"):
        raise ValueError(f"--unit is example or user, not {unit!r}")
    if rows_per_user is not None and rows_per_user < 1:
        raise ValueError("--rows-per-user is a whole number, at least 1")
    if unit == "example":
        if column is not None or rows_per_user is not None:
            raise ValueError("--user-column and --rows-per-user are for users as units: give --unit user too")
        return None
    from sordino.data.columns import is_table

    if data in DATA_SETS or not is_table(data) or column is not None:
        return column
    from sordino.data import Schema
    from sordino.data.reading import schema_beside

    named = Schema.read(schema or schema_beside(Path(data).expanduser())).user
    if named is None:
        raise ValueError("--unit user needs the column that says whose a row is: give --user-column")
    return named


def features_for(data: str, model: str | None, features: str | None) -> str | None:
    """As told; those of the data set, if it has any, where nothing is said of features and model."""
    from sordino.models import default_features

    return default_features(data) if features is None and model is None else features


def model_for(loaded: Loaded, features: str | None = None) -> str:
    """The model that is taken if nobody names one: of public facts alone."""
    from sordino.models import default_model

    columns = getattr(getattr(loaded.inputs, "schema", None), "columns", None)
    if columns is None:
        return default_model(loaded.name, loaded.input_shape, features)
    kinds = {each.kind for each in columns} - {"ignore"}
    # Thousands of words, or the numbers of an embedding, leave little to a hidden layer but noise.
    return "linear" if kinds == {"text"} else "mlp:64"


def declared_name(data: str, loaded: Loaded, data_name: str | None, ledger: Path | None) -> str:
    """What the owner calls the data. A file's name is no name for people: another file may hold the same ones."""
    if data_name is not None:
        return data_name
    counts = ledger is not None or bool(os.environ.get("SORDINO_LEDGER"))
    if counts and data not in DATA_SETS:
        raise ValueError(
            f"a ledger counts by the name that its owner gives to a data set: give one to {data}, with --data-name"
        )
    return loaded.name


def loggers(folder: Path, tensorboard: Path | None, mlflow: str | None) -> list[HistoryLogger]:
    """Where else the history is shown while it grows. A folder of its own for each run is what TensorBoard expects."""
    if tensorboard is None and mlflow is None:
        return []
    from sordino.live import TensorBoard, mlflow_named

    found: list[HistoryLogger] = (
        [] if tensorboard is None else [TensorBoard(tensorboard / folder.resolve().name)]
    )
    return found if mlflow is None else [*found, mlflow_named(mlflow)]


def public_facts(loaded: Loaded) -> list[str]:
    """What reading the data took for public, as a certificate says it."""
    # What says how its raw rows became these says that by itself.
    return [f"public: {', '.join(loaded.public)}"] if loaded.public and loaded.inputs is None else []


def check_chance(seed: int | None, secure: bool) -> None:
    if secure and seed is not None:
        raise ValueError("--secure takes its randomness from the operating system: leave out --seed")


def budget_of(
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    such_as: str = "1 over the number of units, such as 1e-5",
) -> Budget | None:
    """The budget the options name; None if they name a noise multiplier, or nothing."""
    from sordino.privacy import Budget
    from sordino.privacy.budget import check_delta

    if epsilon is not None and noise_multiplier is not None:
        raise ValueError("give either --epsilon or --noise-multiplier, not both")
    if epsilon is not None:
        if delta is None:
            raise ValueError(f"--epsilon needs a --delta: choose one well below {such_as}")
        return Budget(epsilon, delta)
    if noise_multiplier is not None and delta is not None:
        check_delta(delta)
    return None


def task_for(loaded: Loaded) -> Task:
    """What is learnt from this data, and measured."""
    from sordino.tasks import classification, next_words, regression

    if loaded.task == "regression":
        assert loaded.inputs is not None
        return regression(scale=loaded.inputs.target.half_range, limit=1.0)
    return next_words() if loaded.task == "next-word" else classification()


def parsed_settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set takes NAME=VALUE, not {pair!r}")
        if name in settings:
            raise ValueError(f"--set {name} was given twice: give it once")
        settings[name] = value_of(value)
    return settings


def check_outputs(network: nn.Module, loaded: Loaded, spec: str) -> None:
    """The model runs on rows of this shape and gives a score for each class; made-up rows tell."""
    import torch

    from sordino.data import as_examples

    inputs, _ = as_examples(loaded.train).template(5)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = network(inputs)
    except Exception as error:
        raise ValueError(
            f"model {spec!r} cannot run on inputs of shape {loaded.input_shape}: {type(error).__name__}: {error}"
        ) from error
    if loaded.task == "next-word":
        return
    right = isinstance(output, torch.Tensor) and output.dim() == 2 and output.shape[1] >= loaded.classes
    if loaded.task == "regression":
        right = isinstance(output, torch.Tensor) and output.shape in ((5,), (5, 1))
    if not right:
        got = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"model {spec!r} must give {loaded.classes} scores for each of 5 rows, shape (5, {loaded.classes}), "
            f"but gave {got}"
        )


@contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """What stops a run from outside gets one line, which says how to go on."""
    from sordino.runs import CannotWrite, RunDirectory

    again = f"the same command with --out {folder} --resume"
    try:
        yield
    except KeyboardInterrupt:
        raise ValueError(f"interrupted; to go on from the last checkpoint, give {again}") from None
    except CannotWrite as error:
        begun = RunDirectory(folder).is_of_a_run
        raise ValueError(f"{error} ({again})" if begun else str(error)) from error


@contextmanager
def told_to_end_is_interrupted() -> Iterator[None]:
    """SIGTERM, by which machines and schedulers end a process, does what Ctrl-C does. For commands: a library has no
    business with the handlers of the program it is part of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def interrupt(*_: Any) -> None:
        if os.getpid() != owner:  # a fork, which is to end at once
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def run_and_show(folder: Path, as_json: bool, run: Callable[[], Run], lines: Callable[[Run], Lines]) -> None:
    """Run, say how to go on if it is interrupted, and print what came of it: ``lines``, or one JSON object."""
    from sordino.runs import to_json

    with warnings_in_one_line(), interruptible(folder):
        done = run()
    if as_json:
        print(to_json({**done.summary, "run": str(folder)}))
        return
    for name, value in [*lines(done), ("run", str(folder))]:
        print(f"{name:18s} {value}")


def measured_lines(run: Run, cover: str) -> Lines:
    """Metrics on held-out rows; ``cover`` says what no guarantee does."""
    for name, value in run.metrics.items():
        if name == "covered" or not isinstance(value, float) or name.endswith("_noise"):
            continue
        noise = run.metrics.get(f"{name}_noise")
        of = f"{{:{'.2%' if name.endswith('accuracy') else '.4f'}}}"
        shown = of.format(value) + ("" if noise is None else f" +- {of.format(noise)} of noise")
        whose = "held-out clients" if name.startswith("holdout") else "held-out rows"
        yield name.replace("_", " "), f"{shown}   ({whose}{cover})"


def promised_lines(run: Run, spent_by: str) -> Lines:
    """The guarantee, and what it was spent by."""
    from sordino.privacy import show_epsilon

    summary = run.summary
    yield "epsilon", show_epsilon(run.epsilon) + (f"   {summary['caveat']}" if "caveat" in summary else "")
    if run.delta is not None:
        yield "delta", f"{run.delta:g}"
    yield "unit", f"one {summary['unit']} of {summary['n']}; relation: {summary['relation']}"
    noise = f"noise multiplier {summary['noise_multiplier']:.4f}, accountant {summary['accountant']}"
    yield "spent by", "; ".join([f"{spent_by}, {noise}", *_spent_besides(summary)])
    yield ("counted", counted_line(summary["ledger"]))
    if summary["seeded"]:
        yield "seeded", "a known seed voids the guarantee: for experiments only"


def _spent_besides(summary: dict[str, Any]) -> Iterator[str]:
    """What epsilon includes besides the training; the parts do not add up to it, since they are composed."""
    before, metrics = summary.get("before"), summary.get("metric_epsilon")
    standardise = summary.get("standardise") or {}
    if standardise.get("how") == "private":
        yield "one release to standardise inputs"
    if before is not None:
        yield f"epsilon {before['event']['epsilon']:g} for bounds and values of the schema"
    if metrics is not None:
        yield f"epsilon {metrics:g} for metrics"


def counted_line(ledger: dict[str, Any] | None) -> str:
    if ledger is None:
        return "in no ledger: give --ledger FILE, or set SORDINO_LEDGER"
    cap = "" if ledger["capped"] else "; no cap is set on it"
    return f"in {ledger['file']}, on {ledger['data']!r} as run {ledger['run']}{cap}"


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        yield


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"sordino: warning: {' '.join(str(message).split())}", file=sys.stderr)
