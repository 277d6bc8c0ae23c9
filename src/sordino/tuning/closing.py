"""The end of a tuning: the winner as a run of its own, with what everything together has spent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from torch import nn

from sordino.ledger import Account
from sordino.privacy import certificate
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.privacy.sealing import signing_key
from sordino.privacy.wording import SELECTION_IS_SECRET
from sordino.runs import Run, delete_checkpoint, to_json
from sordino.runs.closing import draw_report
from sordino.runs.directory import INPUTS
from sordino.runs.plan import inputs_caveat
from sordino.tasks import evaluate
from sordino.tuning.plan import TuningPlan
from sordino.tuning.trials import Trials, Winner, forget_candidates_keys
from sordino.warn import warn

# What of the winner's run.json is about that run alone, or tells how long everything took.
_ITS_OWN = (
    "seconds",
    "peak_memory_mib",
    "seconds_and_memory",
    "time",
    "ledger",
    "metrics",
    "checkpoint_kept",
    "status",
)
_ACCESS = (
    "While the tuning went on, the key of the noise, and of a selection the best candidate so far, were in a "
    "checkpoint that its owner alone could read. It is deleted when the tuning ends."
)
_OF_A_GRID = "all candidates were fixed beforehand, and everything they released is counted"


def closed_tuning(trials: Trials, winner: Winner, unit: str, units: int, *, keep: bool) -> Run:
    """Write everything down and delete what must not stay. ``keep`` is whether the directory is the user's."""
    plan, directory = trials.plan, trials.directory
    units += _only_scored(trials)
    model = trials.fresh_model()
    if "model.safetensors" in winner.files:
        trials.with_weights(model, winner.files["model.safetensors"])
    else:
        warn("chance had it that no run was made, so nothing was selected: the model is the initial one")
    written = directory.write_model(model)  # first: the certificate has the hash of what was written
    ledger = _settled(trials.account)
    document = _certified(trials, unit, units, written if keep else None, ledger)
    summary = _summary(trials, winner, unit, units, model, document, ledger)
    history = _history(plan, winner, summary["metrics"])
    if trials.asked.inputs is not None:
        directory.write_json(INPUTS, trials.asked.inputs.to_json())
    directory.write_json("certificate.json", document)
    directory.write("history.jsonl", "".join(f"{to_json(line)}\n" for line in history).encode())
    if history:
        draw_report(directory, summary, history, document, inputs=trials.asked.inputs)
    forget_candidates_keys(directory, len(plan.candidates))
    directory.write_json("run.json", summary)  # last: what is complete is not resumed
    delete_checkpoint(directory.checkpoint_folder)
    path = directory.path if keep else None
    guarantee, metrics = plan.guarantee, summary["metrics"]
    return Run(model, guarantee.epsilon, guarantee.delta, metrics, document, summary, history, path)


def _certified(
    trials: Trials,
    unit: str,
    units: int,
    model: Mapping[str, str] | None,
    ledger: Mapping[str, Any] | None,
) -> dict[str, Any]:
    plan, asked = trials.plan, trials.asked
    return certificate(
        guarantee=plan.guarantee,
        event=plan.event,
        unit=unit,
        units=units,
        data=asked.data_name,
        assumptions=assumptions(trials),
        unprotected=_unprotected(trials),
        implementation={"method": _how(plan), "access": _ACCESS if model else "Nothing was left on a disk."},
        seeded=trials.standing.seeded,
        secure=asked.secure,
        caveat=_caveat(trials),
        rationale=asked.rationale,
        model=model,
        ledger=ledger,
        signing_key=signing_key(asked.signing_key),
        created=_when(plan),
    )


def _caveat(trials: Trials) -> str | None:
    found, inputs = trials.plan.caveats, trials.asked.inputs
    return found[0] if found else inputs_caveat(inputs)


def _when(plan: TuningPlan) -> str:
    """Of a selection the day only: how long it took would tell how many runs there were."""
    now = datetime.now(UTC)
    return now.isoformat(timespec="seconds") if plan.stopping is None else now.date().isoformat()


def _how(plan: TuningPlan) -> str:
    names = ", ".join(dict.fromkeys(each.method.name for each in plan.candidates))
    if plan.stopping is None:
        return (
            f"{len(plan.candidates)} candidates were trained and scored, and the best of them chosen: {names}"
        )
    mean = f"{plan.stopping.mean:g} runs on average, their number drawn at random ({plan.stopping.name})"
    return f"private selection: {mean}, each of one of {len(plan.candidates)} candidates: {names}"


def _unprotected(trials: Trials) -> list[str]:
    of_inputs = [] if trials.asked.inputs is None else list(trials.asked.inputs.unprotected)
    found = [*of_inputs, "how long the tuning took"]
    if trials.plan.stopping is not None:
        found[-1] += ", which tells how many runs there were, and must be kept secret"
    if trials.asked.test is not None:
        found.append("metrics of the winner on held-out rows, in run.json")
    return found


def _only_scored(trials: Trials) -> int:
    """Units that choose among candidates, who are promised the same. If they are those that were trained on, they are
    counted already; if some of them are, they count twice, since nobody knows which."""
    score, pinned = trials.plan.score, trials.standing.pinned
    if score.public or pinned["rows of the score"] == pinned["rows of the data"]:
        return 0
    return score.members.count


def assumptions(trials: Trials) -> list[str]:
    """What a reader of the guarantee must believe."""
    plan, score = trials.plan, trials.plan.score
    facts = list(dict.fromkeys(each.terms.sampling.assumption for each in plan.outlines))
    facts += dict.fromkeys(
        said
        for each in plan.outlines
        if (said := replace(each.terms, multiplier=plan.multiplier).explanation)
    )
    never = max(each.terms.sampling.never_drawn(each.terms.units) for each in plan.outlines)
    if never:
        facts.append(f"up to {never} of {plan.outlines[0].terms.units} are in no batch of a run")
    facts += [_OF_A_GRID if plan.stopping is None else SELECTION_IS_SECRET]
    if score.public:
        facts.append("the rows that candidates were scored on are public")
    else:
        facts.append(
            f"scores are noisy means over {score.members.count} {_plural(score)}, whose number is public; they are "
            "promised the same as those that were trained on; what a candidate is worth to one of them is computed "
            "without regard to the others (checked on made-up rows)"
        )
    facts += [
        *trials.asked.assumptions,
        *([] if trials.asked.inputs is None else [f"public: {', '.join(trials.asked.inputs.public)}"]),
        "shapes, number of rows and number of classes of the data are public",
    ]
    facts.append(
        "the model computes the loss of each example without regard to the others (checked on made-up rows)"
    )
    return facts


def _plural(score: Any) -> str:
    return "users" if score.groups is not None else "examples"


def _settled(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    account.close()
    return account.statement()


def _summary(
    trials: Trials,
    winner: Winner,
    unit: str,
    units: int,
    model: nn.Module,
    document: dict[str, Any],
    ledger: dict[str, Any] | None,
) -> dict[str, Any]:
    plan, guarantee, asked = trials.plan, trials.plan.guarantee, trials.asked
    of_winner = json.loads(winner.files["run.json"]) if "run.json" in winner.files else {}
    metrics = {} if asked.test is None else evaluate(model, trials.task, asked.test)
    own = None if winner.candidate is None else dict(winner.candidate.own)
    return {
        "status": "complete",
        **(asked.details or {}),  # of which the winner says the same, if there is one
        **{name: value for name, value in of_winner.items() if name not in _ITS_OWN},
        "data": asked.data_name,
        "n": units,
        "trained_on": plan.outlines[0].terms.units,
        "unit": unit,
        "seeded": trials.standing.seeded,
        "secure": asked.secure,
        "noise_multiplier": plan.multiplier,
        "relation": guarantee.relation,
        "epsilon": epsilon_to_json(guarantee.epsilon),
        "delta": guarantee.delta,
        "zcdp_rho": guarantee.zcdp_rho,
        "gdp_mu": guarantee.gdp_mu,
        "accountant": guarantee.accountant,
        "assumptions": document["assumptions"],
        "unprotected": document["unprotected"],
        "metrics": {**metrics, "covered": False},
        "ledger": ledger,
        "tuning": {**plan.describe(), "winner": own, "winning_score": winner.score, "table": winner.table},
        "sordino_version": sordino_version(),
    }


def _history(plan: TuningPlan, winner: Winner, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """That of the winner, where at every step all is spent that the tuning spends: it was laid down beforehand."""
    lines = winner.files.get("history.jsonl", b"").decode().splitlines()
    found = [{**json.loads(line), "epsilon": epsilon_to_json(plan.guarantee.epsilon)} for line in lines]
    if found and len(metrics) > 1:
        found[-1] |= metrics
    return found
