"""`sordino train`: from data to a model, a certificate and a report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import sordino.cli.options as given
from sordino.cli.common import (
    Lines,
    about_model,
    budget_of,
    check_chance,
    declared_name,
    features_for,
    initial_model,
    loaded_data,
    loggers,
    measured_lines,
    model_for,
    parsed_settings,
    promised_lines,
    public_facts,
    run_and_show,
    run_folder,
    task_for,
    user_of,
)
from sordino.cli.private_bounds import NO_HELD_OUT, bounds_for, check_first, rehearsal
from sordino.cli.torchrun import joined, own_device, told_to_all

if TYPE_CHECKING:
    from pathlib import Path

    from sordino.data import Loaded
    from sordino.methods import Method
    from sordino.runs import Run
    from sordino.runs.before import Before

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.


def train(
    data: given.Data,
    epsilon: given.Epsilon = None,
    delta: given.Delta = None,
    noise_multiplier: given.NoiseMultiplier = None,
    method: given.Method = "auto",
    settings: given.Settings = None,
    epochs: given.Epochs = None,
    batch_size: given.BatchSize = None,
    minutes: given.Minutes = None,
    model: given.Model = None,
    features: given.Features = None,
    image_size: given.ImageSize = None,
    grey: given.Grey = False,
    sampling: given.Sampling = None,
    standardise: given.Standardise = None,
    accountant: given.Accountant = "auto",
    classes: given.Classes = None,
    target: given.Target = None,
    schema: given.SchemaFile = None,
    test: given.TestFile = None,
    holdout: given.HoldoutShare = None,
    unit: given.UnitOfPrivacy = "example",
    user_column: given.UserColumn = None,
    rows_per_user: given.RowsPerUser = None,
    seed: given.Seed = None,
    secure: given.Secure = False,
    device: given.Device = None,
    shares: given.Shares = None,
    evaluations: given.Evaluations = 10,
    out: given.Out = None,
    resume: given.Resume = False,
    keep_checkpoint: given.KeepCheckpoint = False,
    show_unprotected: given.ShowLoss = False,
    ledger: given.Ledger = None,
    data_name: given.DataName = None,
    rationale: given.Rationale = None,
    signing_key: given.SigningKey = None,
    tensorboard: given.TensorBoard = None,
    mlflow: given.MLflow = None,
    private_bounds: given.PrivateBounds = None,
    metric_epsilon: given.MetricEpsilon = None,
    as_json: given.AsJson = False,
) -> None:
    """Train a model privately: a budget goes in; a model, a certificate and a report come out."""
    with joined():
        with told_to_all():
            budget = budget_of(epsilon, delta, noise_multiplier)
            check_chance(seed, secure)
            _check_together(resume, out, minutes, epochs, batch_size)

            from sordino.training import train as run_training

            features = features_for(data, model, features)
            how = _method(method, settings, budget is not None or noise_multiplier is not None)
            user = user_of(data, unit, user_column, rows_per_user, schema)
            check_first(
                data,
                private_bounds,
                budget,
                how,
                model,
                (metric_epsilon, unit),
                (test, holdout),
                out,
                resume,
                signing_key,
            )

            def settings_for(loaded: Loaded, spec: str, before: Before | None) -> dict[str, Any]:
                folder = run_folder(out, loaded.name)
                return {
                    **_of_data(loaded, spec, seed, features),
                    "method": how, "epochs": epochs, "batch_size": batch_size, "sampling": sampling,
                    "budget": budget, "noise_multiplier": noise_multiplier, "delta": delta, "accountant": accountant,
                    "before": before, "metric_epsilon": metric_epsilon, "standardise": standardise,
                    "minutes": minutes, "seed": seed, "secure": secure, "device": own_device(device), "shares": shares,
                    "evaluations": evaluations, "show_unprotected": show_unprotected, "out": folder,
                    "resume": resume, "keep_checkpoint": keep_checkpoint, "progress": True, "ledger": ledger,
                    "data_name": declared_name(data, loaded, data_name, ledger), "rationale": rationale,
                    "signing_key": signing_key, "callbacks": loggers(folder, tensorboard, mlflow),
                }  # fmt: skip

            held_out, not_of_tables = (test, holdout), (classes, image_size, grey)
            rehearse = rehearsal(settings_for, data, model, features, held_out, rows_per_user, not_of_tables)
            table = data, schema, target, user, rows_per_user
            complete, before = bounds_for(
                *table, private_bounds, budget, ledger, data_name, out if resume else None, rehearse
            )
            loaded = loaded_data(
                data, classes, features, image_size=image_size, grey=grey, target=target, schema=complete, test=test,
                user=user, holdout=holdout, rows_per_user=rows_per_user,
                **({} if metric_epsilon is None else {"whole_test": True}),
            )  # fmt: skip
            if metric_epsilon is not None and loaded.test is None:
                raise ValueError(NO_HELD_OUT)
            asked = settings_for(loaded, model or model_for(loaded, features), before)
            groups = loaded.users if unit == "user" else None
            run = partial(run_training, loss=task_for(loaded), data=loaded.train, groups=groups, **asked)
        run_and_show(asked["out"], as_json, run, lambda done: [*_lines(done), *_not_looked_at(loaded, data)])


def _check_together(
    resume: bool, out: Path | None, minutes: float | None, epochs: float | None, batch_size: int | None
) -> None:
    from sordino.training import check_minutes

    if resume and out is None:
        raise ValueError("--resume needs the directory of the run: give it as --out")
    check_minutes(minutes, epochs, batch_size, "--")


def _method(name: str, settings: list[str] | None, has_budget: bool) -> Method:
    from sordino.methods import method_named

    how = method_named(name, parsed_settings(settings or []))
    if how.private and not has_budget:
        raise ValueError(
            f"{how.name} needs a budget: give --epsilon and --delta (or --noise-multiplier); there are no defaults"
        )
    return how


def _of_data(loaded: Loaded, spec: str, seed: int | None, features: str | None) -> dict[str, Any]:
    """Keywords of `sordino.train` that follow from the data."""
    return {
        "model": initial_model(spec, loaded, seed),
        "test": loaded.test,
        "assumptions": public_facts(loaded),
        "details": {**about_model(spec, loaded), **({} if features is None else {"features": features})},
        "inputs": loaded.inputs,
    }


def _lines(run: Run) -> Lines:
    covered = "covered by the guarantee" if run.metrics["covered"] else "not covered by the guarantee"
    yield from measured_lines(run, f"; {covered}")
    yield from promised_lines(run, _batches(run.summary))
    yield from _standardised(run.summary)
    yield from _time(run.summary)


def _time(summary: dict[str, Any]) -> Lines:
    """What the training was expected to take, by made-up rows, and what it would do with more."""
    if "time" not in summary:
        return
    time, asked = summary["time"], summary.get("minutes")
    expected, times, most = time["expected_minutes"], time["times_the_default"], time["most"]
    took = f"{expected:g}" if expected >= 0.1 else "less than 0.1"
    took = f"{took} minutes of training, by its speed on made-up rows"
    if asked is None:
        more = most["times_the_default"]
        would = f"with --minutes {most['minutes']:g} it would take {more:g} times the epochs and batch"
        yield "time", f"{took}; {would if more > 1 else 'it has no use for more'}"
        return
    took += f", {times:g} times the default epochs{'' if times <= 1 else ' and batch'}"
    if asked > most["minutes"]:
        yield "time", f"{took}; no use is known for more than {most['minutes']:g}: the rest is left unused"
    else:
        yield "time", f"{took}; more time would be of use, up to --minutes {most['minutes']:g}"


def _standardised(summary: dict[str, Any]) -> Lines:
    how = summary.get("standardise")
    if how is None:
        return
    if how["how"] == "public":
        yield "standardised", "inputs, by what is public of them"
        return
    few = " (units are too few for each)" if how["one_scale"] else ""
    yield (
        "standardised",
        f"{how['of']}{few}, for {100 * how['share']:.3g} % of the budget (noise multiplier {how['multiplier']:.4g}); "
        "the model takes rows as they are",
    )


def _not_looked_at(loaded: Loaded, data: str) -> Lines:
    """Where nothing was measured, a misspelt label goes unseen: whether there is one must not show, so this is said of
    every such table, whatever its rows hold."""
    schema = getattr(loaded.inputs, "schema", None)
    if schema is None or loaded.test is not None:
        return
    from sordino.data.schema import listed

    target = schema.target
    right = f"is written as one of {listed(target.labels)}" if target.labels else "is a number"
    yield (
        "not looked at",
        f"whether {target.name!r} {right}, as the schema says: rows where it is not add nothing, and how many is not "
        f"said. --holdout or --test shows it (covered with --metric-epsilon); so does sordino evaluate RUN {data}",
    )


def _batches(summary: dict[str, Any]) -> str:
    steps, batches = summary["steps"], summary["batches"]
    taken = f"{steps} steps" if steps == batches else f"{batches} noisy batches in {steps} steps"
    noise = summary["method"]["noise"]
    if noise.get("bands", 1) != 1 and summary["noise_multiplier"]:
        return f"{taken}, noise related over {noise['bands']} of them"
    if "restart_every" in noise and summary["noise_multiplier"]:
        every = noise["restart_every"]
        of_trees = "one tree" if every is None else f"trees of {every * summary['steps_per_epoch']} steps"
        return f"{taken} in {of_trees}, {summary['steps_per_epoch']} steps to an epoch"
    return taken
