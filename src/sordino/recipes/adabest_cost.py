"""AdaBest's cost tables (Varno et al., 2022, supplement, tables 4 and 5), checked by counting what our code does.

The code that trains is run on made-up gradients, under a mode that sees every operation on tensors. What grows with the
number of parameters is a vector operation. From counts at several sizes, numbers of steps and of clients follow
the formulas, which must fit all of them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.data import as_examples
from sordino.federated.algorithms import Round, algorithm_named
from sordino.federated.local import LocalSgd
from sordino.federated.population import LocalPlan, Population
from sordino.federated.rounds import Broadcast, Workplace, chunks, mean_of
from sordino.federated.store import ClientStore
from sordino.noise import Streams
from sordino.recipes import show
from sordino.recipes.frame import Report, Result, Run, Study, Table, recipe
from sordino.recipes.paper import Published
from sordino.steps import Plan

SIZES = (41, 97)  # n; what does not depend on it is not a vector operation
STEPS = (2, 3, 7)  # K
CLIENTS = (1, 3, 4)  # participants, of a population of 10
POPULATION = 10
TYPICAL_STEPS = 50  # five epochs of 450 examples in batches of 45

SAID = Published(__name__)
ALGORITHMS = SAID.contestants("algorithms")
WHERE = ("down", "up", "on_client", "on_server")


class Cost(NamedTuple):
    """Additions and multiplications of n-vectors: so many, and so many more for each step or participant."""

    adds: float
    adds_each: float
    multiplies: float
    multiplies_each: float

    def over(self, other: Cost) -> Cost:
        return Cost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def at(self, count: int) -> float:
        """All operations with so many steps or participants."""
        return self.adds + self.multiplies + count * (self.adds_each + self.multiplies_each)

    def show(self, letter: str) -> str:
        """As the paper writes it, without the n: s is an addition, m a multiplication, ``letter`` what each is of."""
        named = zip(("s", letter + "s", "m", letter + "m"), self, strict=True)
        counts = {name: count for name, count in named if count}
        text = ""
        for name in (name for name in (letter + "s", letter + "m", "s", "m") if name in counts):
            count = counts[name]
            text += (" - " if count < 0 else " + ") + ("" if abs(count) == 1 else f"{abs(count):g}") + name
        return text.removeprefix(" + ").strip() or "0"


@dataclass(frozen=True)
class Printed:
    """A line of the paper's tables: what client and server compute, and vectors down, up, kept by each of them."""

    client: Cost
    server: Cost
    vectors: tuple[int, int, int, int]


PRINTED = {
    label: Printed(Cost(*of["client"]), Cost(*of["server"]), of["vectors"])
    for label, of in SAID["printed"].items()
}


# Counting -------------------------------------------------------------------------------------------------------

# Additions and multiplications for each element of the result, and what does neither.
_ARITHMETIC = {name: of["cost"] for of in SAID["arithmetic"] for name in of["operations"].split()}
_OTHER = set(" ".join(SAID["other"].values()).split())


@dataclass
class Count:
    """Numbers that were added and multiplied, one by one."""

    adds: int = 0
    multiplies: int = 0
    counting: bool = True

    def see(self, name: str, elements: int, scale: float) -> None:
        if not self.counting:
            return
        name = name.rstrip("_")
        if name in _ARITHMETIC:
            adds, multiplies = _ARITHMETIC[name]
            self.adds += adds * elements
            self.multiplies += (multiplies + (abs(scale) != 1)) * elements
        elif name not in _OTHER:
            raise RuntimeError(f"what torch's {name} costs is not known here: say so in {__name__}")


def counting(count: Count) -> AbstractContextManager[Any]:
    """Every operation on tensors of real numbers in this context goes into ``count``."""

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            options = dict(kwargs or {})
            result = func(*args, **options)
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                # sub and add take alpha, addcmul and addcdiv take value.
                scale = float(options.get("alpha", options.get("value", 1)))
                count.see(func.overloadpacket.__name__, result.numel(), scale)
            return result

    mode: AbstractContextManager[Any] = Counting()  # type: ignore[no-untyped-call]
    return mode


class _Watched(dict[str, Any]):
    """The server's state as clients see it: it remembers what they asked for."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


def count_round(
    *, method: str, settings: Mapping[str, Any], size: int, steps: int, participants: int
) -> Result:
    """Operations and bytes of the second round: of one client, and of the server.

    It is what `sordino.federate` does: a chunk with what its clients kept, their local work, the mean of what they
    sent, the server's update. Only the gradients are made up, and not counted.
    """
    chance = torch.Generator().manual_seed(1)
    of_client, of_server = Count(), Count()

    def gradients(x_Pd: Any, inputs_PB: Any, targets_PB: Any, weights_PB: Any) -> Any:
        of_client.counting = False
        made_up = torch.randn(x_Pd.shape, generator=chance)
        of_client.counting = True
        return made_up

    algorithm = algorithm_named(method, settings)
    rows = torch.zeros(POPULATION * steps, 1), torch.zeros(POPULATION * steps)
    parts = np.split(np.arange(POPULATION * steps), POPULATION)
    population = Population.of(as_examples(rows), parts)
    workplace = Workplace(population, gradients, algorithm, LocalSgd(), LocalPlan(1, 1))
    theta = torch.randn(size, generator=chance)
    numbers = Plan(size, 2, 2, POPULATION / participants, float(participants), 0.0, 0.1, None)
    server = algorithm.start(theta, numbers)
    store = ClientStore(algorithm.client_vectors, size, ("round", "rate"))
    streams = Streams.from_seed(1)

    clients = range(participants)
    for number in (1, 2):
        for count in (of_client, of_server):
            count.adds = count.multiplies = 0
        now = Round(number, POPULATION, float(participants), 0.1, float(steps), float(steps))
        (chunk,) = chunks(clients, participants, now, store, streams, own_rates=False)
        seen = _Watched(server)
        with counting(of_client):
            finished = workplace.finished(chunk, Broadcast(theta, seen, now))
        if finished.failed:
            raise RuntimeError(f"{method}: {finished.failed}")
        with counting(of_server):
            mean, _ = mean_of([finished], algorithm.sent_vectors, size, algorithm.weighted)
            assert mean is not None
            algorithm.server_update(theta, mean, server, now)
        algorithm.seen(server, [float(steps)] * participants)
        vectors, at = finished.states, {"round": torch.full((participants,), float(number))}
        store.write_many(list(clients), vectors, at | {"rate": finished.rates.flatten()})
        store.commit()

    kept, _, _ = store.read([0])
    return {
        "client": [of_client.adds / participants, of_client.multiplies / participants],
        "server": [of_server.adds, of_server.multiplies],
        "down": _bytes([theta, *(server[key] for key in seen.asked)], size),
        "up": _bytes([part[0] for part in finished.sent.values()], size),
        "on_client": _bytes([part[0] for part in kept.values()], size),
        "on_server": _bytes(list(server.values()), size),
        "asked": sorted(seen.asked),
    }


def _bytes(parts: Sequence[Any], size: int) -> int:
    """Of vectors of the model's size; a few plain numbers beside them do not count."""
    vectors = [part for part in parts if isinstance(part, torch.Tensor) and part.numel() == size]
    return sum(vector.numel() * vector.element_size() for vector in vectors)


def count_algorithm(
    *,
    method: str,
    settings: dict[str, Any],
    sizes: Sequence[int],
    steps: Sequence[int],
    participants: Sequence[int],
) -> Result:
    """Formulas that fit the counts at all of these sizes, steps and participants exactly."""
    torch.set_num_threads(1)
    found = {
        (n, k, p): count_round(method=method, settings=settings, size=n, steps=k, participants=p)
        for n, k, p in product(sizes, steps, participants)
    }
    result: Result = {
        "client": fitted(_by_vector(found, "client"), 0),
        "server": fitted(_by_vector(found, "server"), 1),
        "asked": found[sizes[0], steps[0], participants[0]]["asked"],
        "rounds": len(found),
    }
    for what in WHERE:
        each = {Fraction(one[what], 4 * n) for (n, _, _), one in found.items()}
        if len(each) != 1:
            raise RuntimeError(
                f"{what} of {method} is no fixed number of vectors: {sorted(map(float, each))}"
            )
        result[what] = float(each.pop())
    return result


Counts = Mapping[tuple[int, int], tuple[Fraction, ...]]  # (K, P) -> additions and multiplications of vectors


def _by_vector(found: Mapping[tuple[int, int, int], Result], who: str) -> Counts:
    """How counts grow with n, by K and P; at least two sizes, and the same growth between any of them."""
    sizes = sorted({n for n, _, _ in found})
    grown: dict[tuple[int, int], tuple[Fraction, ...]] = {}
    for _, k, p in found:
        at = {n: [Fraction(count) for count in found[n, k, p][who]] for n in sizes}
        slopes = {
            tuple((b - a) / (large - small) for a, b in zip(at[small], at[large], strict=True))
            for small, large in pairwise(sizes)
        }
        if len(slopes) != 1:
            raise RuntimeError(f"the counts of a {who} are not linear in the number of parameters")
        grown[k, p] = slopes.pop()
    return grown


def fitted(counts: Counts, of: int) -> list[float]:
    """[adds, adds for each, multiplies, multiplies for each], each of K (``of`` 0) or of P (``of`` 1): exactly."""
    low, high = min(counts, key=lambda at: at[of]), max(counts, key=lambda at: at[of])
    result: list[float] = []
    for kind in (0, 1):
        each = (counts[high][kind] - counts[low][kind]) / (high[of] - low[of])
        fixed = counts[low][kind] - each * low[of]
        wrong = [at for at, count in counts.items() if count[kind] != fixed + each * at[of]]
        if wrong:
            raise RuntimeError(f"no formula a + b {'KP'[of]} fits the counts at (K, P) = {wrong}")
        result += [float(fixed), float(each)]
    return result


# What was found -------------------------------------------------------------------------------------------------

Costs = Mapping[str, tuple[Cost, Cost]]  # of client and server


@recipe("adabest-cost", "the same: it takes seconds")
def compare(run: Run, quick: bool) -> Report:
    tried = {"sizes": list(SIZES), "steps": list(STEPS), "participants": list(CLIENTS)}
    study = Study(count_algorithm, tried)
    results = run([study.job(who.label, who) for who in ALGORITHMS])
    found = {who.label: result for who, result in zip(ALGORITHMS, results, strict=True)}
    costs = {label: (Cost(*result["client"]), Cost(*result["server"])) for label, result in found.items()}
    tables = [
        _claims_table(found, costs),
        _cost_table("client", "K", 0, costs),
        _cost_table("server", "P", 1, costs),
        _memory_table(found),
    ]
    notes = SAID.notes(rounds=sum(result["rounds"] for result in results))
    return Report(tables, notes, settings={**tried, "population": POPULATION})


def _claims_table(found: Mapping[str, Result], costs: Costs) -> Table:
    rows = []
    printed = {label: (line.client, line.server) for label, line in PRINTED.items()}
    claims = SAID["claims"]
    for claim, rival in zip(claims[:2], ("SCAFFOLD/m", "FedDyn"), strict=True):
        client, server = (
            [by["AdaBest"][of].at(count) - by[rival][of].at(count) for by in (costs, printed)]
            for of, count in ((0, TYPICAL_STEPS), (1, 10))
        )
        shown = SAID.text("operations", client=client, server=server)
        rows.append((claim, show.verdict([client[0] < 0, server[0] < 0]), shown))
    traffic = {label: (r["down"], r["up"]) for label, r in found.items()}
    total = {label: sum(both) / sum(traffic["FedAvg"]) for label, both in traffic.items()}
    same = [traffic[label] == traffic["FedAvg"] for label in ("AdaBest", "FedDyn")]
    shares = [total["SCAFFOLD/m"] == 1.5, total["SCAFFOLD"] == 2]
    three = [found[label] for label in ("SCAFFOLD/m", "FedDyn", "AdaBest")]
    alike = [len({r[where] for r in three}) == 1 for where in WHERE[2:]]
    kept = ", ".join(f"{r['on_client']:g} and {r['on_server']:g}" for r in three)
    rows += [
        (claims[2], show.verdict(same), f"AdaBest {total['AdaBest']:g}, FedDyn {total['FedDyn']:g} times"),
        (claims[3], show.verdict(shares), f"{total['SCAFFOLD/m']:g} and {total['SCAFFOLD']:g} times"),
        (claims[4], show.verdict(alike), f"vectors on a client and on the server: {kept}"),
    ]
    return SAID.table("claims", rows)


def _cost_table(who: str, letter: str, of: int, costs: Costs) -> Table:
    rows = []
    printed: dict[str, Cost] = {label: getattr(line, who) for label, line in PRINTED.items()}
    for label, both in costs.items():
        ours, over = (cost.show(letter) for cost in (both[of], both[of].over(costs["FedAvg"][of])))
        theirs, theirs_over, missing = "-", "-", "not in the paper's tables"
        if label in printed:
            both_theirs = printed[label], printed[label].over(printed["FedAvg"])
            theirs, theirs_over, missing = *(cost.show(letter) for cost in both_theirs), ""
        reason = SAID["reasons"][who].get(label, missing)
        rows.append(f"{label} | {theirs} | {ours} | {theirs_over} | {over} | {reason}")
    each = "K local steps" if who == "client" else "P participants"
    return SAID.table("cost", rows, who=who, each=each)


def _memory_table(found: Mapping[str, Result]) -> Table:
    columns = ("down", "up", "kept by a client", "kept by the server")
    known: dict[str, tuple[Any, ...]] = {label: line.vectors for label, line in PRINTED.items()}
    known["SCAFFOLD"] = (*SAID["scaffold_traffic"], "-", "-")
    rows = []
    for label, result in found.items():
        pairs = zip(columns, WHERE, known.get(label, "----"), strict=True)
        cells = {column: f"{result[what]:g} ({printed})" for column, what, printed in pairs}
        asked = ", ".join(result["asked"]) or "nothing"
        rows.append({"algorithm": label, **cells, "clients ask for, besides theta": asked})
    return SAID.table("memory", rows)
