"""`tune`: several candidates under one budget, every run and the choice among them paid for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from sordino.data import as_examples
from sordino.gate import Members
from sordino.gradients import Loss, refuse
from sordino.methods import Method
from sordino.privacy.selection import Stopping
from sordino.ranks import refuse_several
from sordino.runs import Run
from sordino.runs.options import Options, RunOptions, taken
from sordino.tasks import Task, as_task
from sordino.training import warn_of_delta
from sordino.tuning.candidates import Over, candidates_of
from sordino.tuning.closing import closed_tuning
from sordino.tuning.counting import counted, ledger_for_tuning
from sordino.tuning.opening import directory_of, standing_of
from sordino.tuning.plan import planned
from sordino.tuning.score import Score, Worth
from sordino.tuning.trials import Trials, select_one, try_all

if TYPE_CHECKING:
    pass


def tune(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    over: Over,
    score: Any,
    method: Method | str = "auto",
    settings: Mapping[str, Any] | None = None,
    stopping: Stopping | None = None,
    worth: Worth | None = None,
    score_is_public: bool = False,
    score_groups: Any = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    sampling: str | None = None,
    groups: Any = None,
    template: tuple[Any, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Try several settings under one budget, and return the best as a run whose epsilon is that of everything.

    The guarantee: all that comes out (for a grid every candidate and its score, for a selection the winner and its
    score) is together (epsilon, delta)-differentially private. A grid is composed as one mechanism; a selection draws
    at random how many runs to make, tells nobody, and shows only the best (Liu and Talwar 2019; Papernot and Steinke
    2022; Koskela, Redberg and Wang 2024). How long it took, and whatever else shows how many runs there were, must be
    kept secret.

    Args:
        model: Any ``nn.Module``; every candidate starts from its weights.
        loss: ``loss(output, target)``, one value for each example, or a `Task`.
        data: Private rows, as for `train`.
        over: What is tried: values by the name of a setting (all combinations), or a list of settings. ``epochs``,
            ``batch_size`` and ``method`` are settings too.
        score: Rows on which candidates are compared, as for `train`. They may be rows of ``data``, or others.
        method: By its name, where its settings are tried.
        settings: Of the method, the same for all.
        stopping: None for a grid, or how the number of runs of a private selection is drawn: `Stopping`.
        worth: ``worth(scores, targets)``, from 0 to 1 for each example; by default whether it is classified right.
        score_is_public: The rows of ``score`` are nobody's secret: scores have no noise then and cost nothing.
        score_groups: Whose each of these rows is, where ``groups`` are given.
        epochs: As for `train`.
        batch_size: As for `train`.
        sampling: As for `train`.
        groups: As for `train`.
        template: As for `train`.
        budget: What everything together may spend: `Budget`, or a pair (epsilon, delta).
        test: Held-out rows on which the winner is measured. No guarantee covers it.
        out: A directory: the winner's run, and of a grid the candidates' in ``candidates/``.
        resume: Go on with an interrupted tuning, without spending again.
        options: And the other keywords of `train`.

    >>> import torch
    >>> rows = torch.randn(80, 3), torch.randint(2, (80,))
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> run = tune(nn.Linear(3, 2), loss, rows, over={"learning_rate": [0.1, 1.0]}, score=rows, method="dp-sgd",
    ...            budget=(3, 1e-3), epochs=1)
    >>> run.epsilon <= 3, len(run.summary["tuning"]["table"])
    (True, 2)
    """
    refuse_several("tuning")
    (asked,) = taken(options, tune, Options)
    asked.refuse_besides("tuning")
    _check(asked, stopping, groups, score_groups)
    assert asked.budget is not None
    task, examples = as_task(loss), as_examples(data)
    asked = asked.with_inputs_of(examples)
    refuse(model)  # before any data is touched
    members = Members(len(examples), groups)
    candidates = candidates_of(over, method, settings, epochs, batch_size)
    judge = Score(score, task, worth, score_is_public, score_groups)
    judge.check(model, template)
    warn_of_delta(asked.budget.delta, members.count)
    plan = planned(
        candidates,
        judge,
        stopping,
        asked.budget,
        units=members.count,
        sampling=sampling,
        accountant=asked.accountant,
        secure=asked.secure,
    )
    with directory_of(asked) as (directory, kept):
        standing = standing_of(directory, asked, model, plan, members, examples)
        with counted(asked, plan, standing, directory, members.unit, kept) as account:
            if account is not None:
                account.saw(lambda key: str(examples.fingerprint(key)))
            run = {"sampling": sampling, "groups": groups, "template": template}
            trials = Trials(model, task, data, plan, asked, standing, directory, account, run)
            winner = try_all(trials, _saying(asked)) if stopping is None else select_one(trials)
            return closed_tuning(trials, winner, members.unit, members.count, keep=kept)


def _check(asked: Options, stopping: Stopping | None, groups: Any, score_groups: Any) -> None:
    if asked.budget is None:
        raise ValueError("a tuning needs a budget for all candidates together: give budget=(epsilon, delta)")
    if asked.noise_multiplier is not None or asked.delta not in (None, asked.budget.delta):
        raise ValueError(
            "the noise of a tuning follows from its budget: leave out noise_multiplier and delta"
        )
    if asked.keep_checkpoint:
        raise ValueError("a tuning keeps no checkpoint: it holds the key of the noise, and what is sealed")
    if asked.callbacks:
        raise ValueError("callbacks would see every candidate: leave them out, or train each by itself")
    if asked.show_unprotected:
        raise ValueError("a tuning shows nothing that is not covered: leave out show_unprotected")
    ledger_for_tuning(asked)  # or refuse, before anything is written
    if (groups is None) != (score_groups is None):
        raise ValueError(
            "where the unit is the user, rows to train on and rows to score on both need ids: give groups and "
            "score_groups"
        )


def _saying(asked: Options) -> Any:
    show = sys.stderr.isatty() if asked.progress is None else asked.progress
    return lambda line: print(f"sordino: {line}", file=sys.stderr) if show else None
