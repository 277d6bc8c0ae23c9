"""How a run is counted in a ledger that outlives it: reserved before data is touched, paid before each release."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sordino.gate import Door
from sordino.ledger import Account, BeyondCap, LedgerError, LedgerFile, ledger_of
from sordino.privacy import approximate, compose, price
from sordino.privacy.renyi import rdp_of
from sordino.privacy.wording import SEED_WARNING
from sordino.runs.directory import ACCOUNT
from sordino.runs.options import UNNAMED
from sordino.runs.plan import RunPlan
from sordino.runs.process import Process
from sordino.runs.recording import Recording
from sordino.runs.spending import AFTER, FIRST, Spending
from sordino.runs.writing import replace_file
from sordino.terms import Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_PAYMENTS = 20  # of a run, as many as checkpoints: each pays for a twentieth of its releases, ahead


@contextmanager
def counted(process: Process, plan: RunPlan, recording: Recording) -> Iterator[Account | None]:
    """The run's account, open in here; None if nobody counts."""
    ledger = ledger_of(recording.asked.ledger)
    check_before(ledger, plan)
    if ledger is None:
        _refuse_uncounted(recording)
        yield None
        return
    ours = isinstance(ledger, LedgerFile)
    if isinstance(ledger, LedgerFile):
        account = _reserved(ledger, process, plan, recording)
    else:
        account = _given(ledger, plan, recording)
    try:
        if ours:
            account.saw(lambda key: str(process.pins(key)["rows of the data"]))
        if process.door is None:
            account.spend("run", process.promise.planned)
        else:
            process.door.payer = Payer(account, plan.terms, None if ours else process.door)
        yield account
    except BaseException:
        # What cannot be resumed is closed, and so is what has released nothing. The rest stays reserved.
        if ours:
            with contextlib.suppress(LedgerError):
                if recording.directory is None or not account.spent.charges:
                    account.close()
        raise


def pay_first(process: Process, account: Account | None, event: DpEvent, *, ours: bool) -> None:
    """Pay for what is released before the first step, before a row is read for it. Paid once, however often asked."""
    assert isinstance(process.promise, Spending)
    assert event == process.promise.first
    _pay(process, account, FIRST, event, ours)


def pay_after(process: Process, account: Account | None, ours: bool) -> None:
    """Pay for what is released when the training is done, before it is looked at. Paid once, however often asked."""
    promise = process.promise
    assert isinstance(promise, Spending)
    assert promise.after is not None
    _pay(process, account, AFTER, promise.after, ours)


def _pay(process: Process, account: Account | None, key: str, event: DpEvent, ours: bool) -> None:
    door = process.door
    assert door is not None
    if account is not None:
        (account if ours else account.part(door.charged_as)).spend(key, event)
    door.ledger.charge(f"{door.charged_as}/{key}", event)


def check_before(ledger: LedgerFile | Account | None, plan: RunPlan) -> None:
    """What was released before the run has to be in the ledger that counts the run, under the same name."""
    before = plan.before
    if isinstance(ledger, Account):
        _check_same_before(ledger, None if before is None else before.run)
    if before is None:
        return
    if ledger is None:
        if before.run is not None:
            raise ValueError(
                "what was released before this run was paid in a ledger: give that (--ledger, or SORDINO_LEDGER)"
            )
        return
    if before.run is None:
        raise ValueError(
            "what was released before this run is not in the ledger: pay for it there (LedgerFile.pay), and say under "
            "which run"
        )
    book = ledger if isinstance(ledger, LedgerFile) else LedgerFile(ledger.file.path)
    data = plan.data if isinstance(ledger, LedgerFile) else ledger.data
    book.check_paid(before.run, data, plan.unit, before.event)


def _check_same_before(account: Account, run: str | None) -> None:
    """What an account says was released before is what its run says, or no certificate of it could be verified."""
    said = account.before
    if said != run:
        raise ValueError(
            f"this account is reserved with {said or 'nothing'} before it, and the run has {run or 'nothing'}: reserve "
            "with before=, the name under which it was paid"
        )


def check_named(data: str) -> None:
    if data == UNNAMED:
        raise ValueError(
            "a ledger counts by the name that its owner gives to a data set: say it, as in data_name='patients'"
        )


class Payer:
    """Pays for the next releases before the first of them is made, a twentieth of the plan at a time: what is in the
    ledger is never less than what was released, and a run has few entries however many steps it takes.

    An account that several runs may pay from gets their keys apart, by the name under which the door charges: a resumed
    run has the same one again, and no other has it.
    """

    def __init__(self, account: Account, terms: Terms, door: Door | None = None) -> None:
        assert terms.steps is not None
        self._account, self._terms, self._door, self._paid = account, terms, door, 0
        self._ahead = math.ceil(terms.steps / _PAYMENTS)

    def __call__(self, step: int) -> None:
        assert self._terms.steps is not None
        if step < self._paid:
            return
        until = max(step + 1, min(step + self._ahead, self._terms.steps))
        account = self._account if self._door is None else self._account.part(self._door.charged_as)
        account.spend_all(dict(self._terms.charge(each) for each in range(self._paid, until)))
        self._paid = until


def _reserved(ledger: LedgerFile, process: Process, plan: RunPlan, recording: Recording) -> Account:
    check_named(plan.data)
    run = _run_of(recording, ledger)
    return _reserve(ledger, run, process, plan, recording.asked.accountant)


def _given(account: Account, plan: RunPlan, recording: Recording) -> Account:
    """An account of somebody else, after a check that it is one for such a run."""
    account.check(None if plan.data == UNNAMED else plan.data, plan.unit)
    noted, here = _read(recording), (account.run, account.identity)
    if recording.saved is not None and noted is not None and noted != here:
        raise ValueError(
            "this run is counted elsewhere: give the ledger or the account that it was begun with"
        )
    _note(recording, *here)
    return account


def _reserve(ledger: LedgerFile, run: str, process: Process, plan: RunPlan, accountant: str) -> Account:
    try:
        return ledger.reserve(
            plan.data,
            process.promise.planned,
            run=run,
            kind=plan.kind,
            unit=plan.unit,
            delta=plan.delta,
            label=plan.label,
            caveat=" ".join(filter(None, (plan.caveat, SEED_WARNING if plan.seeded else None))),
            before=None if plan.before is None else plan.before.run,
        )
    except BeyondCap as refused:
        raise LedgerError(f"{refused}{_what_fits(refused, plan, accountant)}") from refused


def _what_fits(refused: BeyondCap, plan: RunPlan, accountant: str) -> str:
    """The largest epsilon with which the same run would be admitted, in words."""
    terms, cap = plan.terms, refused.cap
    if refused.room <= 0:
        return "; there is nothing left: raise the cap, if its owner agrees"
    if not terms.multiplier or plan.delta is None or cap.unit != plan.unit:
        return ""

    own = [] if plan.metric_epsilon is None else [approximate(plan.metric_epsilon)]
    if plan.standardise is not None and plan.standardise.event is not None:
        own.append(plan.standardise.event)  # which no noise of the training makes less
    besides = [*([] if plan.before is None else [plan.before.event]), *own]

    def with_noise(factor: float) -> Terms:
        return replace(terms, multiplier=terms.multiplier * factor)

    def fits(factor: float) -> bool:
        noised = with_noise(factor)
        assert noised.steps is not None
        return float(rdp_of(compose([noised.cost(noised.steps), *own]), (cap.order,))[0]) <= refused.room

    few, many = 1.0, 2.0
    while not fits(many):
        few, many = many, 2 * many
        if many > 1e6:
            return ""
    while many / few > 1.001:
        middle = math.sqrt(few * many)
        few, many = (few, middle) if fits(middle) else (middle, many)
    enough = with_noise(many)
    assert enough.steps is not None
    fitting = compose([*besides, enough.cost(enough.steps)])
    epsilon = math.floor(100 * price(fitting, plan.delta, accountant).epsilon) / 100
    return f"; with epsilon {epsilon:g} it would fit" if epsilon > 0 else ""


# Under which name a run is counted --------------------------------------------------------------------------


def _run_of(recording: Recording, ledger: LedgerFile) -> str:
    """The name of the run in the ledger. It is on the disk before it is in the ledger, so that nothing reserved by a
    process that is killed is lost track of."""
    noted, resumed = _read(recording), recording.saved is not None
    if noted is not None:
        run, identity = noted
        if resumed and identity != ledger.identity:
            raise ValueError(f"this run is counted in another ledger than {ledger.path}: give that one")
        idle = identity == ledger.identity and ledger.is_idle(run)
        if resumed and not idle:
            return run
        if idle and ledger.resume(run).is_open:
            ledger.close(run)  # of a process that was killed before it had released anything
    run = secrets.token_hex(8)
    _note(recording, run, ledger.begin())
    return run


def _note(recording: Recording, run: str, identity: str) -> None:
    if recording.directory is not None:
        recording.directory.create()
        note = json.dumps({"run": run, "ledger": identity})
        replace_file(recording.directory.path / ACCOUNT, note.encode(), mode=0o600)


def _refuse_uncounted(recording: Recording) -> None:
    if recording.saved is not None and _read(recording) is not None:
        raise ValueError("this run is counted in a ledger: give it again (--ledger, or SORDINO_LEDGER)")


def _read(recording: Recording) -> tuple[str, str] | None:
    if recording.directory is None or not (recording.directory.path / ACCOUNT).exists():
        return None
    path = recording.directory.path / ACCOUNT
    try:
        noted = json.loads(path.read_text())
        return noted["run"], noted["ledger"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): start the run afresh") from error
