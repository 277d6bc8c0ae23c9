"""The end of a run: its certificate, run.json, and what the caller gets back."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from sordino.privacy import Guarantee, certificate
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.runs.checkpoint import delete_checkpoint
from sordino.runs.directory import RunDirectory

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Run:
    """What a training run gives back."""

    model: nn.Module
    epsilon: float
    delta: float | None
    metrics: dict[str, Any]
    certificate: dict[str, Any]
    summary: dict[str, Any]  # run.json
    history: list[dict[str, Any]] = field(repr=False)
    path: Path | None = None


def closed_run(
    model: nn.Module,
    directory: RunDirectory | None,
    *,
    guarantee: Guarantee,
    event: DpEvent,
    unit: str,
    assumptions: Sequence[str],
    plan: Mapping[str, Any],
    metrics: dict[str, Any],
    facts: Mapping[str, Any],
    history: list[dict[str, Any]],
    started: float,
    keep_checkpoint: bool,
    files: Mapping[str, dict[str, Any]] | None = None,
) -> Run:
    """Write everything down, ``files`` too, and delete the checkpoint. ``facts`` go into run.json beside the plan."""
    document = certificate(
        guarantee=guarantee,
        event=event,
        unit=unit,
        assumptions=assumptions,
        seeded=plan["seeded"],
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    summary = {
        "status": "complete",
        **plan,
        "relation": guarantee.relation,
        "epsilon": epsilon_to_json(guarantee.epsilon),
        "zcdp_rho": guarantee.zcdp_rho,
        "gdp_mu": guarantee.gdp_mu,
        "accountant": guarantee.accountant,
        "assumptions": document["assumptions"],
        "metrics": metrics,
        **facts,
        "checkpoint_kept": keep_checkpoint and directory is not None,
        "sordino_version": sordino_version(),
        **_machine_figures(time.monotonic() - started, private=bool(plan["noise_multiplier"])),
    }
    if directory is not None:
        directory.write_model(model)
        for name, content in {"certificate.json": document, **(files or {})}.items():
            directory.write_json(name, content)
        # Last: a run that is complete is not resumed. Where a kill leaves the checkpoint of a complete run, the next
        # command that opens the directory deletes it (RunDirectory.tidy); the other way round a kill in between would
        # leave a run that is neither complete nor can go on.
        directory.write_json("run.json", summary)
        if not keep_checkpoint:
            delete_checkpoint(directory.checkpoint_folder)
    path = None if directory is None else directory.path
    return Run(model, guarantee.epsilon, plan["delta"], metrics, document, summary, history, path)


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
