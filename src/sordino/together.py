"""How the processes of one run begin, work and end together: rank 0, which trains, and those that work for it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data.standardised import Moments, Place
from sordino.gate import Shares
from sordino.privacy.certificate import sordino_version
from sordino.ranks import Ranks
from sordino.runs import Run
from sordino.runs.resume import constants_of
from sordino.standardise.folding import Standardised

Facts = Callable[
    [bytes], Mapping[str, Any]
]  # what processes must have in common: digests, useless without the key


def lead(ranks: Ranks, shares: Shares, facts: Facts) -> None:
    """Rank 0 has what it needs, and lets the others have it; refuses those that have other rows or another model.

    Of the randomness of the run they learn nothing: units and seeds are told step by step.
    """
    if ranks.count == 1:
        return
    key = os.urandom(32)
    begin = {
        "shares": shares.count,
        "microbatch": shares.engine.microbatch,
        "threads": torch.get_num_threads(),  # the order of additions depends on it
        "key": key.hex(),
    }
    ranks.say(begin, shares.theta, *constants_of(shares.engine.model).values())
    ours = _seen(shares, facts, key)
    for rank, theirs in enumerate(ranks.answers(), 1):
        different = sorted(name for name in ours if theirs.get(name) != ours[name])
        if different:
            raise ValueError(
                f"rank {rank} differs from rank 0 in {', '.join(different)}: give every process the same, all rows "
                "included (batches are shared out here)"
            )


def follow(
    ranks: Ranks,
    shares: Shares,
    facts: Facts,
    template: tuple[Any, Any] | None,
    place: Place | None = None,
) -> Run:
    """Work for rank 0 until the run is done, and return what it returns. Moments of the inputs go to ``place``."""
    begin, (theta, *constants) = ranks.hear()

    def begun() -> tuple[Mapping[str, Any], list[Any]]:
        torch.set_num_threads(begin["threads"])
        shares.count, shares.engine.microbatch = begin["shares"], begin["microbatch"]
        ours = [shares.theta, *constants_of(shares.engine.model).values()]
        if [each.shape for each in ours] != [each.shape for each in (theta, *constants)]:
            raise ValueError("its model is another than that of rank 0: give every process the same")
        with torch.no_grad():
            for value, told in zip(ours, (theta, *constants), strict=True):
                value.copy_(told)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rank 0 has warned
            shares.prepare(template)
        return _seen(shares, facts, bytes.fromhex(begin["key"])), []

    ranks.answer(begun)
    while True:
        message, tensors = ranks.hear()
        if "run" in message:
            shares.theta.copy_(tensors[0])
            return _run_of(message["run"], _behind(shares.engine.model, tensors[1:]))
        if "moments" in message:
            ranks.answer(partial(_placed, place, tensors))
            continue
        ranks.answer(lambda: (None, shares.answer(message, tensors)))  # noqa: B023  # called at once


def ended(ranks: Ranks, shares: Shares, run: Run) -> Run:
    """The run that rank 0 has trained, which the others return too."""
    told = {name: value for name, value in vars(run).items() if name != "model"}
    behind = [run.model.offset, run.model.deviation] if isinstance(run.model, Standardised) else []
    ranks.end({"run": {**told, "path": None if run.path is None else str(run.path)}}, shares.theta, *behind)
    return run


def tell_moments(ranks: Ranks, place: Place) -> None:
    """Rank 0 has standardised the inputs: all others do so from here on."""
    if ranks.count > 1 and place.moments is not None:
        ranks.say({"moments": True}, place.moments.offset, place.moments.deviation)
        ranks.answers()


def _placed(place: Place | None, told: Sequence[Tensor]) -> tuple[None, list[Tensor]]:
    assert place is not None
    place.moments = Moments(*(each.clone() for each in told))
    return None, []


def _behind(model: nn.Module, told: Sequence[Tensor]) -> nn.Module:
    """The model, behind the standardisation of rank 0 if that could not be folded into it."""
    return Standardised(model, Moments(*told)) if told else model


def _run_of(told: Mapping[str, Any], model: nn.Module) -> Run:
    return Run(model=model, **{**told, "path": None if told["path"] is None else Path(told["path"])})


def _seen(shares: Shares, facts: Facts, key: bytes) -> dict[str, Any]:
    """What of this process decides about sums, as it is compared."""
    seen = {
        "number of rows": len(shares.examples),
        "way to gradients": [shares.engine.everything_unruled, shares.engine.draws_randomness],
        "parameters": [[slot.name, slot.stop] for slot in shares.engine.vector.slots],
        "version of Sordino": sordino_version(),
        "version of PyTorch": torch.__version__,
        **facts(key),
    }
    return json.loads(json.dumps(seen))  # type: ignore[no-any-return]
