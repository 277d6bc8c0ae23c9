"""`sordino train`: from data to a model, a certificate and a report."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.common import (
    AsJson,
    Classes,
    KeepCheckpoint,
    Out,
    Resume,
    Secure,
    budget_of,
    draw_report,
    drawn_at_last,
    initial_model,
    interruptible,
    loss_for,
    parsed_settings,
    run_folder,
    show_warning,
)

if TYPE_CHECKING:
    from sordino.runs import Run

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.


def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fashion-mnist, emnist-bymerge, emnist-letters, cifar10, adult, ag-news, or a path to "
            "an .npz file.",
        ),
    ],
    epsilon: Annotated[float | None, typer.Option(help="The budget, above 0. No default.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Strictly between 0 and 1; below 1/n. No default.")
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Instead of --epsilon: noise over threshold. 0 means none, epsilon inf."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto (tunes itself), adadp, oso, dp-ftrl (no sampling needed), dp-dog, dp-sgd, dp-adam, adam-wosm, "
            "or without privacy sgd, adam."
        ),
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, e.g. learning_rate=0.5."),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the data (expected); by default from the number of rows."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Expected batch size; by default from the number of rows.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="linear, mlp[:sizes], cnn, or MODULE:CALLABLE; by default chosen for the data."),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="poisson, the default; shuffled (dp-ftrl's default) or fixed-order, priced without amplification; "
            "shuffled-as-poisson, priced as the papers do, which is no guarantee."
        ),
    ] = None,
    accountant: Annotated[
        str, typer.Option(help="auto (the tighter of rdp and pld), rdp, pld, moments.")
    ] = "auto",
    classes: Classes = None,
    seed: Annotated[
        int | None, typer.Option(help="For experiments only: a known seed voids the guarantee.")
    ] = None,
    secure: Secure = False,
    out: Out = None,
    resume: Resume = False,
    keep_checkpoint: KeepCheckpoint = False,
    show_unprotected: Annotated[
        bool, typer.Option("--show-unprotected", help="Show the training loss, which no guarantee covers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model privately: a budget goes in; a model, a certificate and a report come out."""
    budget = budget_of(epsilon, delta, noise_multiplier)
    chosen = parsed_settings(settings or [])

    from sordino.data import load
    from sordino.methods import method_named
    from sordino.models import default_model
    from sordino.runs import to_json
    from sordino.training import train as run_training

    if resume and out is not None:

        def draw(summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
            draw_report(summary, history, out / "report.png")

        if drawn_at_last(out, draw, as_json):
            return
    loaded = load(data, classes=classes)
    recipe = method_named(method, chosen)
    if recipe.private and budget is None and noise_multiplier is None:
        raise ValueError(
            f"{recipe.name} needs a budget: give --epsilon and --delta (or --noise-multiplier); there are no defaults"
        )
    if resume and out is None:
        raise ValueError("--resume needs the directory of the run: give it as --out")
    spec = model or default_model(loaded.name, loaded.input_shape)
    network = initial_model(spec, loaded, seed)
    folder = run_folder(out, loaded.name)
    with warnings.catch_warnings(), interruptible(folder):
        warnings.showwarning = show_warning
        run = run_training(
            network,
            loss_for(loaded),
            loaded.train,
            method=recipe,
            epochs=epochs,
            batch_size=batch_size,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=sampling,
            test=loaded.test,
            seed=seed,
            secure=secure,
            accountant=accountant,
            out=folder,
            resume=resume,
            keep_checkpoint=keep_checkpoint,
            show_unprotected=show_unprotected,
            progress=True,
            data_name=loaded.name,
            assumptions=[f"public: {fact}" for fact in loaded.public],
            details={"model": spec},
        )
        draw_report(run.summary, run.history, folder / "report.png")
    if as_json:
        print(to_json({**run.summary, "run": str(folder)}))
    else:
        _print(run, folder)


def _batches(summary: dict[str, Any]) -> str:
    steps, batches = summary["steps"], summary["batches"]
    taken = f"{steps} steps" if steps == batches else f"{batches} noisy batches in {steps} steps"
    if summary["method"]["noise"]["kind"] == "Tree" and summary["noise_multiplier"]:
        every = summary["method"]["noise"]["restart_every"]
        of_trees = "one tree" if every is None else f"trees of {every * summary['steps_per_epoch']} steps"
        return f"{taken} in {of_trees}, {summary['steps_per_epoch']} steps to an epoch"
    return taken


def _print(run: Run, folder: Path) -> None:
    from sordino.privacy import show_epsilon

    summary = run.summary
    for name, value in run.metrics.items():
        if name != "covered":
            shown = f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4f}"
            print(f"{name.replace('_', ' '):15s} {shown}   (held-out rows; not covered by the guarantee)")
    caveat = f"   {summary['caveat']}" if "caveat" in summary else ""
    print(f"{'epsilon':15s} {show_epsilon(run.epsilon)}{caveat}")
    if run.delta is not None:
        print(f"{'delta':15s} {run.delta:g}")
    print(f"{'unit':15s} one {summary['unit']} of {summary['n']}; relation: {summary['relation']}")
    noise = summary["noise_multiplier"]
    print(
        f"{'spent by':15s} {_batches(summary)}, noise multiplier {noise:.4f}, accountant {summary['accountant']}"
    )
    if summary["seeded"]:
        print(f"{'seeded':15s} a known seed voids the guarantee: for experiments only")
    print(f"{'run':15s} {folder}")
