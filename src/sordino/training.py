"""The training loop: plan, price, step, log, save. Nothing but orchestration."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data import FixedOrder, Poisson, Sampling, Shuffled, as_examples, units_of
from sordino.defaults import default_batch_size, default_epochs
from sordino.gate import Gate, Released
from sordino.gradients import Loss, call_model, evaluating, refuse
from sordino.methods import Method, method_named
from sordino.privacy import (
    Budget,
    Ledger,
    show_epsilon,
)
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.runs import (
    Checkpoint,
    Run,
    RunDirectory,
    TrainingBar,
    closed_run,
    one_run_per_directory,
    restore_,
)
from sordino.runs.journal import ReleaseJournal
from sordino.runs.opening import find_checkpoint
from sordino.runs.resume import (
    behaviour,
    check_same_plan,
    digest,
    marks,
    restore_constants,
    save_constants,
    streams_of,
    test_point,
)
from sordino.runs.spending import Spending, planned_noise
from sordino.steps import Plan
from sordino.vector import holding

_LOGGED_STEPS = 40  # pricing a step with PLD takes a twentieth of a second
_CHECKPOINTS = 20


@one_run_per_directory
def train(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    method: Method | str = "auto",
    epochs: float | None = None,
    batch_size: int | None = None,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    sampling: str | None = None,
    test: Any = None,
    evaluations: int = 10,
    groups: Any = None,
    template: tuple[Any, Any] | None = None,
    public_loss: Callable[[Tensor], Tensor] | None = None,
    seed: int | None = None,
    secure: bool = False,
    accountant: str = "auto",
    microbatch: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    keep_checkpoint: bool = False,
    show_unprotected: bool = False,
    progress: bool | None = None,
    data_name: str = "data",
    assumptions: Sequence[str] = (),
    details: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` privately on ``data`` and return it with its guarantee.

    ``loss(output, target)`` returns one value per example. Give a ``budget``, and the noise is calibrated to
    it; or a ``noise_multiplier`` and ``delta``. Methods without privacy take neither, and their epsilon is
    infinite. The default method tunes itself, and without ``epochs`` and ``batch_size`` these follow from the
    number of units (``sordino.defaults``). ``sampling`` is ``poisson`` (the default), ``shuffled`` or
    ``fixed-order``; tree noise takes ``shuffled``, which it then is when a tree begins, or ``fixed-order``. With
    ``groups`` (an id for each row) the unit of privacy is the group. The model is checked on made-up rows before a
    private one is seen; if it cannot run on those, ``template`` has five that are public. With ``out`` the run writes a
    directory, and ``resume=True`` goes on from its last checkpoint bit for bit. The test rows are looked at
    ``evaluations`` times.
    """
    started = time.monotonic()
    refuse(model)  # before any data is touched
    examples = as_examples(data)
    if isinstance(method, str):
        method = method_named(method)
    if not isinstance(method, Method):
        raise ValueError(f"method must be a name or a Method such as adadp(), not {method!r}")
    if groups is not None:
        groups = units_of(groups, len(examples))
    units = len(examples) if groups is None else int(groups.max()) + 1
    batch_size = default_batch_size(units) if batch_size is None else batch_size
    epochs = default_epochs(units) if epochs is None else epochs
    sampling = sampling or method.noise.sampling
    how = _sampling(sampling, batch_size, units)
    if not epochs > 0 or not math.isfinite(epochs):
        raise ValueError(f"epochs must be positive, not {epochs:g}")
    per_epoch = how.steps_per_epoch(units)
    steps, batches = method.step.steps(max(1, round(epochs * per_epoch)), per_epoch)
    noise = method.noise.planned(batches, per_epoch)
    method = replace(method, noise=noise)
    how = noise.dealt(how, units)
    multiplier, delta = _noise(method, how, units, batches, budget, noise_multiplier, delta, accountant)
    method.step.check(multiplier)
    if delta is not None and delta >= 1 / units:
        warnings.warn(
            f"delta {delta:g} is not below 1/n = {1 / units:.3g}: it allows publishing somebody whole",
            stacklevel=3,
        )

    directory = None if out is None else RunDirectory(Path(out))
    saved = find_checkpoint(directory, resume)
    streams = streams_of(seed, saved)
    if saved is not None:
        assert directory is not None
        torch.set_num_threads(saved["threads"])  # the order of additions depends on it
        restore_constants(model, directory)
    gate = Gate(
        model,
        loss,
        examples,
        clip=method.clip,
        noise_multiplier=multiplier,
        sampling=how,
        noise=method.noise,
        steps=batches,
        ledger=Ledger.from_state(saved["ledger"]) if saved else Ledger(),
        groups=groups,
        template=template,
        secure=secure,
        streams=streams,
        microbatch=saved["microbatch"] if saved else microbatch,
        show_unprotected=show_unprotected,
    )
    spent = Spending(gate, batches, delta, accountant)
    plan: dict[str, Any] = {
        "data": data_name,
        "n": units,
        "unit": gate.unit,
        "method": method.describe(),
        "epochs": float(epochs),
        "batch_size": batch_size,
        "sampling": sampling,
        "steps": steps,
        "steps_per_epoch": per_epoch,
        "batches": batches,
        "noise_multiplier": multiplier,
        "delta": delta,
        "parameters": len(gate.theta),
        "seeded": streams.seeded,
        "secure": secure,
        **(details or {}),
    }
    if how.caveat is not None:
        plan["caveat"] = how.caveat
    if how.never_drawn(units):
        plan["units_in_no_batch"] = how.never_drawn(units)
    pinned: dict[str, Any] = {}
    if directory is not None:
        pinned = {
            "rows of the data": examples.fingerprint(streams.key),
            "groups": None if groups is None else as_examples((groups, groups)).fingerprint(streams.key),
            "model or loss": behaviour(model, gate.theta, loss, examples),
            "public_loss": _public_behaviour(public_loss, gate.theta),
            # What was shown once stays said, and what was assumed stays assumed.
            "show_unprotected": show_unprotected,
            "test": test is not None,
            "evaluations": evaluations,
            "assumptions": list(assumptions),
            "accountant": accountant,
        }
    if saved is not None:
        check_same_plan({**saved["plan"], **saved["pinned"]}, {**plan, **pinned})
        gate.charged_as = saved["charged_as"]

    theta = gate.theta
    names = [slot.name for slot in gate.engine.vector.slots]
    size = gate.engine.vector.size
    numbers = Plan(
        len(theta),
        steps,
        batches,
        per_epoch,
        gate.expected_batch,
        multiplier,
        size,
        noise.restart_steps(per_epoch),
    )
    step_state, rate_state = method.step.start(theta, numbers), method.rate.start(numbers, theta)
    average = theta.clone() if method.average is not None else None
    decay = 1 - 1 / max(1.0, (method.average or 0.0) * steps)
    history: list[dict[str, Any]] = []
    first = 0
    if saved is not None:
        assert directory is not None
        first, gate.step, gate.clip_state = saved["step"], saved["gate_step"], saved["clip_state"]
        gate.noise_state = saved.get("noise_state", gate.noise_state)
        theta.copy_(saved["theta"])
        restore_(step_state, saved["step_state"])
        rate_state = saved["rate_state"]
        if average is not None:
            average.copy_(saved["average"])
        history = directory.cut_history(saved["history_size"])

    journal: ReleaseJournal | None = None
    if directory is not None and multiplier:
        journal = ReleaseJournal(directory.checkpoint_folder, streams.key)

    def field(theta: Tensor) -> Released:
        released = gate(theta, adapt=False)
        if journal is not None:
            journal.record(released)  # or refuse, before anything is made of it
        if public_loss is None:
            return released
        return replace(released, gradient=released.gradient + _gradient(public_loss, theta))

    def save_checkpoint(step: int) -> None:
        if directory is None:
            return
        if journal is not None:
            journal.sync()
        state = {
            "plan": plan,
            "step": step,
            "gate_step": gate.step,
            "key": streams.key.hex(),
            "seeded": streams.seeded,
            "microbatch": gate.engine.microbatch,
            "threads": torch.get_num_threads(),
            "pinned": pinned,
            "ledger": gate.ledger.to_state(),
            "charged_as": gate.charged_as,
            "clip_state": gate.clip_state,
            "noise_state": gate.noise_state,
            "step_state": step_state,
            "rate_state": rate_state,
            "theta": theta,
            "history_size": directory.history_size(),
            **({} if average is None else {"average": average}),
        }
        Checkpoint(state).save(directory.checkpoint_folder)

    if progress is None:
        progress = sys.stderr.isatty()
    logged = marks(steps, _LOGGED_STEPS)
    evaluated = marks(steps, evaluations) if test is not None else set()
    saves = marks(steps, _CHECKPOINTS) - {steps}
    if directory is not None:
        if saved is None:
            directory.create()
            save_constants(model, directory)
            save_checkpoint(0)
        directory.write_json("run.json", {"status": "running", **plan, "sordino_version": sordino_version()})
    with TrainingBar(steps, progress) as bar:
        for step in range(first, steps):
            if average is not None and method.average == 1:
                average.lerp_(theta, 1 / (step + 1))  # of the points at which gradients were asked for
            rate = partial(method.rate.rate, step, rate_state)
            result = method.step.step(field, theta, rate, step_state, method.rate.limit(rate_state))
            rate_state = method.rate.update(rate_state, result, theta)
            gate.adapt(*result.gradients)  # once, when all the gradients of the step are there
            if average is not None and method.average != 1:
                average.lerp_(theta, 1 - min(decay, (step + 1) / (step + 10)))
            done = step + 1
            if done in logged or done in evaluated:
                if journal is not None:
                    journal.sync()
                released = result.gradients[-1]
                assert isinstance(released, Released)
                line = {
                    "step": done,
                    "epoch": gate.step / per_epoch,
                    "rate": result.rate,
                    "threshold": released.threshold if method.clip.has_threshold else None,
                    "epsilon": epsilon_to_json(spent(gate.step)),
                }
                if result.error is not None:
                    line["error"] = result.error
                if "tol" in rate_state:
                    line["tolerance"] = rate_state["tol"]
                if how.caveat is not None:
                    line["caveat"] = how.caveat
                if released.unprotected_loss is not None:
                    line |= {"loss": released.unprotected_loss, "covered": False}
                if done in evaluated:
                    with holding(theta, average):
                        line |= {**evaluate(model, loss, test), "covered": False}
                history.append(line)
                if directory is not None:
                    directory.append_history(line)
                bar.update(done, _facts(line))
            else:
                bar.update(done)
            if done in saves:
                save_checkpoint(done)

    if average is not None:
        theta.copy_(average)
    if not bool(theta.isfinite().all()):
        warnings.warn(
            "training diverged: the model holds numbers that are not finite; use a smaller learning rate or the "
            "default method (what was spent is spent)",
            stacklevel=3,
        )
    thresholds = [line["threshold"] for line in history if line["threshold"]]
    if thresholds and not 1e-3 < thresholds[-1] / gate.clip.sensitivity(gate.clip.start(names)) < 1e3:
        warnings.warn(
            f"the threshold ran away, to {thresholds[-1]:.3g}: use a smaller learning rate, a fixed threshold or the "
            "default method (what was spent is spent)",
            stacklevel=3,
        )
    metrics = {**(evaluate(model, loss, test) if test is not None else {}), "covered": False}
    return closed_run(
        model,
        directory,
        guarantee=spent.total,
        event=spent.paid(batches),
        unit=gate.unit,
        assumptions=[
            how.assumption,
            *_left_out(how.never_drawn(units), units, gate.unit),
            *([gate.explanation] if gate.explanation else []),
            *assumptions,
            *_public_facts(test is not None, show_unprotected),
        ],
        plan=plan,
        metrics=metrics,
        facts={"microbatch": gate.engine.microbatch},
        history=history,
        started=started,
        keep_checkpoint=keep_checkpoint,
    )


def evaluate(model: nn.Module, loss: Loss, data: Any, batch: int = 1000) -> dict[str, float]:
    """Mean loss on held-out rows, and accuracy where outputs are class scores. Not covered by any guarantee."""
    examples = as_examples(data)
    total, right, classified = 0.0, 0, True
    with evaluating(model), torch.no_grad():
        for start in range(0, len(examples), batch):
            inputs, targets = examples.take(torch.arange(start, min(start + batch, len(examples))))
            try:
                output = call_model(model, inputs)
                total += float(loss(output, targets).sum())
            except Exception as error:
                raise ValueError(
                    f"the model or the loss fails on held-out rows with {type(error).__name__} (what it says may quote "
                    "them): check their labels and shapes"
                ) from None
            classified = classified and _are_scores(output, targets)
            if classified:
                right += int((output.argmax(1) == targets).sum())
    metrics = {"test_accuracy": right / len(examples)} if classified else {}
    return {**metrics, "test_loss": total / len(examples)}


def _are_scores(output: Any, targets: Any) -> bool:
    return (
        isinstance(output, Tensor)
        and isinstance(targets, Tensor)
        and output.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )


def _sampling(name: str, batch_size: int, units: int) -> Sampling:
    if batch_size < 1:
        raise ValueError(f"the batch size must be at least 1, not {batch_size}")
    if batch_size > units:
        raise ValueError(
            f"a batch of {batch_size} is more than the {units} units there are: use at most {units}"
        )
    kinds: dict[str, Callable[[], Sampling]] = {
        "poisson": lambda: Poisson(batch_size / units),
        "shuffled": lambda: Shuffled(batch_size),
        "fixed-order": lambda: FixedOrder(batch_size),
        "shuffled-as-poisson": lambda: Shuffled(batch_size, assume_poisson=True),
    }
    if name not in kinds:
        raise ValueError(f"there is no sampling {name!r}: choose one of {', '.join(kinds)}")
    return kinds[name]()


def _noise(
    method: Method,
    how: Sampling,
    units: int,
    calls: int,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    accountant: str,
) -> tuple[float, float | None]:
    """The noise multiplier and delta of the run, from whatever the user gave."""
    if not method.private:
        if budget is not None or noise_multiplier:
            raise ValueError(
                f"{method.name} trains without privacy: leave out the budget, or choose a private method"
            )
        return 0.0, None
    releases, batch = method.noise.over(how, units, calls), how.expected_batch(units)
    return planned_noise(releases, method.clip, batch, calls, budget, noise_multiplier, delta, accountant)


def _public_behaviour(public_loss: Callable[[Tensor], Tensor] | None, theta: Tensor) -> str | None:
    return None if public_loss is None else digest(_gradient(public_loss, test_point(theta)))


def _gradient(public_loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    point = theta.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = public_loss(point)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ValueError("public_loss(theta) must return one number, as a tensor")
        (gradient,) = torch.autograd.grad(value, point)
    return gradient


def _facts(line: dict[str, Any]) -> dict[str, str]:
    facts = {"rate": f"{line['rate']:.3g}"}
    if line["threshold"] is not None:
        facts["threshold"] = f"{line['threshold']:.3g}"
    spent = float(line["epsilon"])
    facts["epsilon"] = "inf" if math.isinf(spent) else show_epsilon(spent, 3)
    if "test_accuracy" in line:
        facts["accuracy"] = f"{line['test_accuracy']:.1%}"
    if "loss" in line:
        facts["loss (unprotected)"] = f"{line['loss']:.3g}"
    return facts


def _left_out(count: int, units: int, unit: str) -> list[str]:
    if not count:
        return []
    return [
        f"{count} of {units} {unit}s are in no batch, since the batches of an epoch are whole and in one order"
    ]


def _public_facts(tested: bool, shown: bool) -> list[str]:
    facts = [
        "shapes, number of rows and number of classes of the data are public",
        "the model computes the loss of each example without regard to the others (checked on made-up rows)",
    ]
    if tested:
        facts.append("metrics on held-out rows are not covered by the guarantee")
    if shown:
        facts.append("the training loss was shown and is not covered by the guarantee")
    return facts
