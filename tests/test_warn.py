"""Warnings point at the line of whoever called us."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import nn

import sordino as sd
from conftest import cross_entropy
from sordino.warn import warn

CENTRAL: dict[str, Any] = {
    "epochs": 1, "batch_size": 20, "method": "dp-sgd", "noise_multiplier": 1.0, "delta": 0.5, "accountant": "rdp"
}  # fmt: skip
FEDERATED: dict[str, Any] = {
    "rounds": 1, "clients": 4, "per_round": 2, "noise_multiplier": 1.0, "delta": 0.5, "accountant": "rdp",
    "engine": "looped", "workers": 1,
}  # fmt: skip


def caught(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [each for each in found if "it allows publishing" in str(each.message)]


@pytest.mark.parametrize(("start", "options"), [(sd.train, CENTRAL), (sd.federate, FEDERATED)])
@pytest.mark.parametrize("how", ["directly", "partially", "in a thread"])
def test_warnings_of_a_run_point_at_the_line_that_started_it(
    toy: Any, start: Any, options: dict[str, Any], how: str
) -> None:
    def directly() -> None:
        start(nn.Linear(10, 3), cross_entropy, toy, **options)

    def partially() -> None:
        partial(start, nn.Linear(10, 3), cross_entropy)(toy, **options)

    def in_a_thread() -> None:
        thread = threading.Thread(target=directly)
        thread.start()
        thread.join()

    line = {"directly": directly, "partially": partially, "in a thread": directly}[how]
    (warning,) = caught(in_a_thread if how == "in a thread" else line)
    assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(line)[1] + 1)


def test_a_run_that_is_all_of_a_thread_has_nobody_to_point_at_and_still_warns(toy: Any) -> None:
    arguments = (nn.Linear(10, 3), cross_entropy, toy)

    def alone() -> None:
        thread = threading.Thread(target=sd.train, args=arguments, kwargs=CENTRAL)
        thread.start()
        thread.join()

    (warning,) = caught(alone)
    assert warning.filename == threading.__file__


def test_whoever_warns_from_outside_is_pointed_at() -> None:
    with pytest.warns(UserWarning, match="careful") as found:
        warn("careful")
    assert found[0].filename == __file__
