"""The end of a run: its certificate, run.json, and what the caller gets back."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from sordino.data.inputs import Inputs
from sordino.ledger import Account
from sordino.privacy import Ledger, certificate
from sordino.privacy.certificate import IMPLEMENTATION, POST_PROCESSING, epsilon_to_json, sordino_version
from sordino.privacy.sealing import signing_key
from sordino.report import drawn
from sordino.report.html import Kept, run_page
from sordino.runs.checkpoint import delete_checkpoint
from sordino.runs.directory import RunDirectory, to_json
from sordino.runs.plan import RunPlan
from sordino.runs.process import HistoryLogger, Line, Process
from sordino.runs.recording import Recording
from sordino.warn import warn

CERTIFICATE = "certificate.json"


@dataclass(frozen=True)
class Run:
    """What a training run gives back.

    Guarantee: model, epsilon and certificate are covered by what the certificate says; metrics are not.

    Args:
        model: The trained model.
        epsilon: What was spent, never more than the budget; infinite without privacy.
        delta: At which epsilon holds.
        metrics: On held-out rows, with ``covered: False``.
        certificate: The guarantee with every event behind it, as in certificate.json.
        summary: What run.json says.
        history: The lines of history.jsonl.
        path: The directory of the run, if it wrote one.

    >>> import torch
    >>> from sordino import sgd, train
    >>> rows = torch.ones(8, 2), torch.zeros(8)
    >>> run = train(nn.Linear(2, 1), lambda output, y: (output[:, 0] - y) ** 2, rows, method=sgd(), epochs=1)
    >>> run.epsilon, run.path
    (inf, None)
    """

    model: nn.Module
    epsilon: float
    delta: float | None
    metrics: dict[str, Any]
    certificate: dict[str, Any]
    summary: dict[str, Any]  # run.json
    history: list[dict[str, Any]] = field(repr=False)
    path: Path | None = None


def closed_run(
    process: Process,
    plan: RunPlan,
    recording: Recording,
    history: list[Line],
    account: Account | None,
    counts: dict[str, Any] | None = None,
) -> Run:
    """Write everything down, the report too, and delete the checkpoint. ``counts`` are metrics that were paid for."""
    ledger = _settled(account, recording)
    guarantee, directory, described = process.promise.total, recording.directory, plan.describe()
    # The model first: the certificate has the hash of what was written.
    network = process.handed_out()
    model = None if directory is None else directory.write_model(network)
    document = _certified(process, plan, recording, model, ledger)
    last = history[-1]  # evaluated, if there is anything to evaluate on
    measured = {name: value for name, value in last.items() if name.startswith(("test_", "holdout_"))}
    metrics = {**(measured if counts is None else counts), "covered": counts is not None}
    summary = {
        "status": "complete",
        **described,
        "relation": guarantee.relation,
        "epsilon": epsilon_to_json(guarantee.epsilon),
        "zcdp_rho": guarantee.zcdp_rho,
        "gdp_mu": guarantee.gdp_mu,
        "accountant": guarantee.accountant,
        "assumptions": document["assumptions"],
        "unprotected": document["unprotected"],
        "metrics": metrics,
        "ledger": ledger,
        **process.facts(),
        "checkpoint_kept": _keeps(recording),
        "sordino_version": sordino_version(),
        **_machine_figures(time.monotonic() - recording.started, private=bool(plan.terms.multiplier)),
    }
    if directory is not None:
        files = {CERTIFICATE: document, **process.files()}
        for name, content in files.items():
            directory.write_json(name, content)
        draw_report(directory, summary, history, document, files.get("clients.json"), recording.asked.inputs)
        # Last: a run that is complete is not resumed. Where a kill leaves the checkpoint of a complete run, the next
        # command that opens the directory deletes it (RunDirectory.tidy); the other way round a kill in between would
        # leave a run that is neither complete nor can go on.
        directory.write_json("run.json", summary)
        directory.forget_account()
        if not recording.asked.keep_checkpoint:
            delete_checkpoint(directory.checkpoint_folder)
    path = None if directory is None else directory.path
    return Run(network, guarantee.epsilon, plan.delta, metrics, document, summary, history, path)


def _certified(
    process: Process,
    plan: RunPlan,
    recording: Recording,
    model: Mapping[str, str] | None,
    ledger: Mapping[str, Any] | None,
) -> dict[str, Any]:
    asked = recording.asked
    return certificate(
        guarantee=process.promise.total,
        event=process.promise.paid(Ledger() if process.door is None else process.door.ledger),
        unit=plan.unit,
        unit_means=plan.unit_means,
        units=plan.terms.units,
        data=plan.data
        if ledger is None
        else str(ledger["data"]),  # an account of yours has a name of its own
        deployment=plan.deployment,
        assumptions=plan.assumptions,
        unprotected=_unprotected(plan, recording),
        **_besides(plan),
        implementation={"method": plan.how, "access": _access(recording), **_counting_noise(plan)},
        seeded=plan.seeded,
        secure=plan.terms.secure,
        caveat=plan.caveat,
        rationale=asked.rationale,
        model=model,
        ledger=ledger,
        signing_key=signing_key(asked.signing_key),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _besides(plan: RunPlan) -> dict[str, Any]:
    """What a certificate says of releases besides the training; nothing where there are none."""
    said = [] if plan.before is None else [plan.before.words]
    if plan.metric_epsilon is not None:
        said.append(
            f"Held-out rows were looked at once, as counts with noise for epsilon {plan.metric_epsilon:.6g}: metrics "
            "are made of these."
        )
    if not said:
        return {}
    ledger_before = {} if plan.before is None or plan.before.run is None else {"paid_before": plan.before.run}
    return {"post_processing": (*said, *POST_PROCESSING), **ledger_before}


def _counting_noise(plan: RunPlan) -> dict[str, str]:
    if plan.before is None and plan.metric_epsilon is None:
        return {}
    of_counts = (
        "Counts besides the training have discrete Laplace noise of OpenDP's, whole numbers, from the system."
    )
    return {"noise": f"{IMPLEMENTATION['noise']} {of_counts}"}


def _unprotected(plan: RunPlan, recording: Recording) -> list[str]:
    """What was shown or can be seen that the guarantee does not cover."""
    found = [*plan.unprotected]
    # Our own loggers say what the history says, and that is listed already.
    if any(not isinstance(each, HistoryLogger) for each in recording.asked.callbacks):
        found.append("what functions of the owner's own (callbacks) wrote into the history, or elsewhere")
    found.append(
        "how long the run took and how much memory it had: run.json has both, rounded up"
        if plan.terms.multiplier
        else "everything: no noise was added, and nothing is promised"
    )
    if _keeps(recording):
        found.append("the checkpoint, which was kept on purpose: whoever has it can take the noise away")
    return found


def _keeps(recording: Recording) -> bool:
    return recording.asked.keep_checkpoint and recording.directory is not None


def _access(recording: Recording) -> str:
    if recording.directory is None:
        return "Nothing was written to a disk."
    kept = (
        "It was kept on purpose: keep it secret." if _keeps(recording) else "It is deleted when the run ends."
    )
    return (
        "While the run went on, the key of the noise and exact sums were in a checkpoint that its owner alone could "
        f"read. {kept}"
    )


def _settled(account: Account | None, recording: Recording) -> dict[str, Any] | None:
    """What the ledger says of the run; its account is closed, unless it is somebody else's."""
    if account is None:
        return None
    if not isinstance(recording.asked.ledger, Account):
        account.close()
    return account.statement()


def draw_report(
    directory: RunDirectory,
    summary: dict[str, Any],
    history: list[Line],
    document: dict[str, Any],
    clients: dict[str, Any] | None = None,
    inputs: Inputs | None = None,
) -> None:
    """The figure and the page. Neither looks at a ledger: the same run has the same report."""
    # As they will be read back, so that `sordino report` makes the same of them.
    read: tuple[dict[str, Any], list[Line], dict[str, Any]] = json.loads(
        to_json([summary, history, document])
    )
    kept = Kept(read[0], read[1], read[2], None if inputs is None else inputs.to_json(), clients)
    makes: dict[str, Callable[[], bytes]] = {
        "report.png": lambda: drawn(summary, history, clients),
        "report.html": lambda: run_page(kept),
    }
    for name, make in makes.items():
        try:
            content = make()
        except Exception as error:  # what was paid for is not lost over a figure
            warn(
                f"{name} could not be drawn ({type(error).__name__}: {error}): mend that, then draw it with sordino "
                f"report {directory.path}"
            )
        else:
            directory.write(name, content)


def _machine_figures(seconds: float, *, private: bool) -> dict[str, Any]:
    """What the run took. Both follow the rows (a user with many of them takes long), so under privacy they are coarse,
    rounded up, and said to be covered by nothing."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if not private:
        return {"seconds": round(seconds, 3), "peak_memory_mib": round(memory, 1)}
    return {
        "seconds": coarse_seconds(seconds),
        "peak_memory_mib": 2 ** math.ceil(math.log2(max(1.0, memory))),
        "seconds_and_memory": {
            "covered": False,
            "rounded up to": "1, 2, 5, 10, ... seconds; a power of two MiB",
        },
    }


def coarse_seconds(seconds: float) -> int:
    """Rounded up to 1, 2, 5, 10, 20, 50, ...

    >>> [coarse_seconds(s) for s in (0.01, 1.0, 1.1, 5.2, 49, 51)]
    [1, 1, 2, 10, 50, 100]
    """
    scale = 1
    while True:
        for step in (1, 2, 5):
            if seconds <= step * scale:
                return step * scale
        scale *= 10
