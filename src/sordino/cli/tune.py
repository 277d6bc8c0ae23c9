"""`sordino tune`: several settings under one budget, every run and the choice among them paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sordino.cli.options as given
from sordino.cli.common import (
    Lines,
    budget_of,
    check_chance,
    declared_name,
    initial_model,
    loaded_data,
    measured_lines,
    model_for,
    parsed_settings,
    promised_lines,
    public_facts,
    run_and_show,
    run_folder,
    task_for,
)
from sordino.named import DATA_SETS, STOPPINGS
from sordino.registry import value_of

if TYPE_CHECKING:
    from sordino.data import Loaded
    from sordino.privacy.selection import Stopping
    from sordino.runs import Run

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.

_SPLIT = 20_241_117  # which rows a share has is public, and the same each time

Data = Annotated[str | None, typer.Argument(metavar="DATA", help=f"{DATA_SETS.help()}.")]
OverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--over", metavar="NAME=V,V,...", help="Values to try for a setting, e.g. learning_rate=0.1,1,10."
    ),
]
ScoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="ROWS",
        help="What candidates are compared on: a share of the training rows, such as 0.1, which are then not trained "
        "on; or test, the test rows; or an .npz file.",
    ),
]
ScoreIsPublic = Annotated[
    bool,
    typer.Option(
        "--score-is-public", help="These rows are nobody's secret: scores are exact, and cost nothing."
    ),
]
StoppingOption = Annotated[
    str | None,
    typer.Option(
        help=f"Private selection: how the number of runs is drawn: {STOPPINGS.help()}. By default geometric, if --runs "
        "is given; without both every combination is tried, as a grid."
    ),
]
Runs = Annotated[float | None, typer.Option(help="Private selection: how many runs on average.")]
Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon",
        help="Give up the interrupted tuning in --out: say what it has spent, and delete the rest.",
    ),
]


def tune(
    data: Data = None,
    over: OverOption = None,
    epsilon: given.Epsilon = None,
    delta: given.Delta = None,
    score: ScoreOption = None,
    score_is_public: ScoreIsPublic = False,
    stopping: StoppingOption = None,
    runs: Runs = None,
    method: given.Method = "auto",
    settings: given.Settings = None,
    epochs: given.Epochs = None,
    batch_size: given.BatchSize = None,
    model: given.Model = None,
    sampling: given.Sampling = None,
    accountant: given.Accountant = "auto",
    classes: given.Classes = None,
    seed: given.Seed = None,
    secure: given.Secure = False,
    device: given.Device = None,
    out: given.Out = None,
    resume: given.Resume = False,
    abandon: Abandon = False,
    ledger: given.Ledger = None,
    data_name: given.DataName = None,
    rationale: given.Rationale = None,
    signing_key: given.SigningKey = None,
    as_json: given.AsJson = False,
) -> None:
    """Try several settings under one budget; the best comes out, with what everything together has spent.

    A grid (--over) shows every candidate. A private selection (--stopping, --runs) draws settings and the number of
    runs at random, and shows only the best: it costs less for many candidates, as long as nobody learns how many runs
    there were; how long it took would tell.
    """
    if abandon:
        return _abandon(out, ledger, as_json)
    budget = budget_of(epsilon, delta, None)
    check_chance(seed, secure)
    if resume and out is None:
        raise ValueError("--resume needs the directory of the tuning: give it as --out")
    if data is None:
        raise ValueError("tune which data? Give a named set or a file")
    if budget is None:
        raise ValueError("a tuning needs a budget: give --epsilon and --delta; there are no defaults")
    if score is None:
        raise ValueError(
            "candidates are compared on rows of yours: give --score 0.1, --score test or --score FILE"
        )
    values, chosen = _values(over or []), parsed_settings(settings or [])
    how_many = _stopping(stopping, runs)

    from functools import partial

    from sordino.tuning import tune as run_tuning

    loaded = loaded_data(data, classes)
    spec = model or model_for(loaded)
    train, judged = _rows(loaded, score, classes)
    # The time at which a selection began would tell, with that at which it ended, how many runs there were.
    folder = run_folder(out, f"{loaded.name}-tuned", to_the_second=how_many is None)
    run = partial(
        run_tuning,
        initial_model(spec, loaded, seed),
        task_for(loaded),
        train,
        over=values,
        score=judged,
        method=method,
        settings=chosen,
        stopping=how_many,
        score_is_public=score_is_public,
        epochs=epochs,
        batch_size=batch_size,
        sampling=sampling,
        budget=budget,
        accountant=accountant,
        seed=seed,
        secure=secure,
        device=device,
        # Exact metrics on rows whose noisy scores are paid for would give them away.
        test=loaded.test if score != "test" or score_is_public else None,
        out=folder,
        resume=resume,
        progress=True,
        data_name=declared_name(data, loaded, data_name, ledger),
        ledger=ledger,
        rationale=rationale,
        signing_key=signing_key,
        assumptions=public_facts(loaded),
        details={"model": spec},
    )
    run_and_show(folder, as_json, run, _lines)


def _values(over: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in over:
        name, equals, values = each.partition("=")
        if not equals or not name or not values:
            raise ValueError(f"--over takes NAME=VALUE,VALUE,..., not {each!r}")
        if name in found:
            raise ValueError(f"--over {name} was given twice: give all its values at once, with commas")
        found[name] = [value_of(value) for value in values.split(",")]
    if not found:
        raise ValueError("there is nothing to try: give values, as in --over learning_rate=0.1,1,10")
    return found


def _stopping(name: str | None, runs: float | None) -> Stopping | None:
    if name is None and runs is None:
        return None
    if runs is None:
        raise ValueError("private selection needs a number of runs, on average: give --runs")
    found: Stopping = STOPPINGS.parsed(name or "geometric", runs)
    return found


def _rows(loaded: Loaded, score: str, classes: int | None) -> tuple[Any, Any]:
    """Rows to train on, and rows to compare candidates on."""
    import torch

    from sordino.data import Examples, as_examples
    from sordino.data.sources import part_of

    if score == "test":
        if loaded.test is None:
            raise ValueError("this data has no test rows: give --score a share, such as 0.1, or a file")
        return loaded.train, loaded.test
    try:
        share = float(score)
    except ValueError:
        return loaded.train, loaded_data(score, classes or loaded.classes).train
    if not 0 < share < 1:
        raise ValueError(f"--score takes a share of the rows between 0 and 1, not {score}")
    rows = as_examples(loaded.train)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SPLIT))
    taken = max(1, round(share * len(order)))
    if taken == len(order):
        raise ValueError("so large a share leaves nothing to train on: give a smaller one")
    judged, rest = order[:taken], order[taken:].sort().values
    if isinstance(loaded.train, Examples):
        return part_of(rows, rest), part_of(rows, judged)
    inputs, targets = loaded.train
    return (inputs[rest], targets[rest]), (inputs[judged], targets[judged])


def _abandon(out: Path | None, ledger: Path | None, as_json: bool) -> None:
    from sordino.privacy import show_epsilon
    from sordino.runs import to_json
    from sordino.tuning import abandon

    if out is None:
        raise ValueError("--abandon needs the directory of the tuning: give it as --out")
    summary = abandon(out, ledger=ledger)
    if as_json:
        return print(to_json({**summary, "run": str(out)}))
    begun = summary["runs_begun"]
    print(
        f"abandoned after {begun} run{'' if begun == 1 else 's'}: epsilon {show_epsilon(float(summary['epsilon']))} at "
        f"delta {summary['delta']:g} is spent"
    )


def _lines(run: Run) -> Lines:
    tuning = run.summary["tuning"]
    if tuning["table"] is not None:
        _print_table(tuning["table"], tuning["winner"])
    own = tuning["winner"]
    yield "winner", "none: chance had it that no run was made" if own is None else _said(own)
    if tuning["winning_score"] is not None:
        cover = "exact, on public rows" if tuning["score"]["public"] else "noisy; covered by the guarantee"
        shown = min(1.0, max(0.0, tuning["winning_score"]))  # which noise may carry beyond
        yield "score", f"{shown:.2%}   ({tuning['score']['of']}; {cover})"
    yield from measured_lines(run, "; not covered by the guarantee")
    yield from promised_lines(run, _spent_by(run.summary))


def _said(own: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _spent_by(summary: dict[str, Any]) -> str:
    tuning = summary["tuning"]
    if tuning["protocol"] == "grid":
        return f"{len(tuning['candidates'])} candidates and their scores"
    return (
        f"a private selection of {tuning['stopping']['mean']:g} runs on average, {tuning['stopping']['runs']}"
    )


def _print_table(table: list[dict[str, Any]], winner: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = [name for name in table[0] if name not in ("score", "run")]
    shown = Table(box=None, pad_edge=False)
    for name in (*names, "score", "run", ""):
        shown.add_column(name, justify="right" if name == "score" else "left")
    for line in table:
        best = all(line[name] == winner[name] for name in names)
        cells = [str(line[name]) for name in names]
        shown.add_row(*cells, f"{min(1.0, max(0.0, line['score'])):.2%}", line["run"], "best" if best else "")
    Console(highlight=False, soft_wrap=True).print(shown)
