"""AdaBest's cost tables (Varno et al., 2022, supplement, tables 4 and 5), checked by counting what our code does.

The code that trains is run on made-up gradients, under a mode that sees every operation on tensors. What grows with the
number of parameters is a vector operation. From counts at several sizes, numbers of steps and of clients follow
the formulas, which must fit all of them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sordino.federated.rounds import Finished

# torch is imported inside functions, so that a list of the recipes is quick.

SIZES = (41, 97)  # n; what does not depend on it is not a vector operation
STEPS = (2, 3, 7)  # K
CLIENTS = (1, 3, 4)  # participants, of a population of 10
POPULATION = 10
TYPICAL_STEPS = 50  # five epochs of 450 examples in batches of 45

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {  # label -> name and settings
    "FedAvg": ("fedavg", {"weighted": False}),
    "SCAFFOLD/m": ("scaffold-m", {}),
    "FedDyn": ("feddyn", {}),
    "AdaBest": ("adabest", {}),
    "SCAFFOLD": ("scaffold", {}),
    "FedAvg, weighted": ("fedavg", {}),
    "FedProx": ("fedprox", {"weighted": False}),
    "FedAdam": ("fedadam", {"weighted": False}),
}


@dataclass(frozen=True)
class Cost:
    """Additions and multiplications of n-vectors: so many, and so many more for each step or participant."""

    adds: Fraction
    adds_each: Fraction
    multiplies: Fraction
    multiplies_each: Fraction

    @staticmethod
    def of(adds: float, adds_each: float, multiplies: float, multiplies_each: float) -> Cost:
        return Cost(*map(Fraction, (adds, adds_each, multiplies, multiplies_each)))

    def __sub__(self, other: Cost) -> Cost:
        mine, theirs = _parts(self), _parts(other)
        return Cost(*(a - b for a, b in zip(mine, theirs, strict=True)))

    def at(self, count: int) -> Fraction:
        """All operations with so many steps or participants."""
        return self.adds + self.multiplies + count * (self.adds_each + self.multiplies_each)

    def show(self, letter: str) -> str:
        """As the paper writes it, without the n: s is an addition, m a multiplication, ``letter`` what each is of."""
        terms = (
            (self.adds_each, letter + "s"),
            (self.multiplies_each, letter + "m"),
            (self.adds, "s"),
            (self.multiplies, "m"),
        )
        text = ""
        for count, what in terms:
            if count:
                sign = " - " if count < 0 else " + "
                text += sign + ("" if abs(count) == 1 else str(abs(count))) + what
        return text.removeprefix(" + ").strip() or "0"


def _parts(cost: Cost) -> tuple[Fraction, ...]:
    return (cost.adds, cost.adds_each, cost.multiplies, cost.multiplies_each)


@dataclass(frozen=True)
class Printed:
    """A line of the paper's tables, in vectors."""

    client: Cost
    server: Cost
    down: int
    up: int
    on_client: int
    on_server: int


# Tables 4 and 5, with the text about storage and communication; the gradients themselves, K g, are left out.
PRINTED = {
    "FedAvg": Printed(Cost.of(0, 1, 0, 1), Cost.of(0, 1, 0, 0), 1, 1, 0, 0),
    "SCAFFOLD/m": Printed(Cost.of(2, 3, 2, 1), Cost.of(2, 1, 2, 0), 2, 1, 1, 1),
    "FedDyn": Printed(Cost.of(1, 4, 1, 2), Cost.of(3, 1, 1, 0), 1, 1, 1, 1),
    "AdaBest": Printed(Cost.of(1, 2, 1, 1), Cost.of(2, 1, 1, 0), 1, 1, 1, 1),
}
SCAFFOLD_TRAFFIC = (2, 2)  # the original: down and up

CLAIMS = (
    "AdaBest computes less than SCAFFOLD/m, on clients and on the server",
    "AdaBest computes less than FedDyn, on clients and on the server",
    "AdaBest and FedDyn send what FedAvg sends",
    "SCAFFOLD/m sends 1.5 times that, SCAFFOLD twice that",
    "SCAFFOLD/m, FedDyn and AdaBest store alike",
)


# Counting -------------------------------------------------------------------------------------------------------

# Additions and multiplications for each element of the result. A division is a multiplication; a sum with alpha and a
# product with value take one more if that is a number other than 1 and -1.
_ARITHMETIC = {
    "add": (1, 0),
    "sub": (1, 0),
    "rsub": (1, 0),
    "mul": (0, 1),
    "div": (0, 1),
    "reciprocal": (0, 1),
    "addcmul": (1, 1),
    "addcdiv": (1, 1),
    "lerp": (2, 1),
}
# What moves, compares, changes signs or takes roots: not what the paper counts.
_MOVES = (
    "_to_copy _unsafe_view alias cat clone copy detach expand index index_put index_select lift_fresh repeat"
)
_MAKES = "arange empty empty_like fill full full_like new_empty new_zeros ones_like zero zeros zeros_like"
_VIEWS = "select slice split squeeze stack t transpose unbind unsqueeze view"
_OTHER = {
    *_MOVES.split(),
    *_MAKES.split(),
    *_VIEWS.split(),
    "abs",
    "neg",
    "sqrt",
    "where",
    "linalg_vector_norm",
}


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


@lru_cache(maxsize=1)
def _mode() -> Any:
    """The class of modes that count; made when torch is there."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self, count: Count) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.count = count

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            options = dict(kwargs or {})
            result = func(*args, **options)
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                # sub and add take alpha, addcmul and addcdiv take value.
                scale = float(options.get("alpha", options.get("value", 1)))
                self.count.see(func.overloadpacket.__name__, result.numel(), scale)
            return result

    return Counting


def counting(count: Count) -> AbstractContextManager[Any]:
    """Every operation on tensors of real numbers in this context goes into ``count``."""
    mode: AbstractContextManager[Any] = _mode()(count)
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
    *, name: str, settings: Mapping[str, Any], size: int, steps: int, participants: int
) -> Result:
    """Operations and bytes of the second round: of one client, and of the server.

    It is what `sordino.federate` does: a chunk with what its clients kept, their local work, the mean of what they
    sent, the server's update. Only the gradients are made up, and not counted.
    """
    import numpy as np
    import torch

    from sordino.data import as_examples
    from sordino.federated.algorithms import Round, algorithm_named
    from sordino.federated.local import LocalSgd
    from sordino.federated.population import LocalPlan, Population
    from sordino.federated.rounds import Broadcast, Workplace, chunks, mean_of
    from sordino.federated.store import ClientStore
    from sordino.noise import Streams
    from sordino.steps import Plan

    chance = torch.Generator().manual_seed(1)
    of_client, of_server = Count(), Count()

    def gradients(x_Pd: Any, inputs_PB: Any, targets_PB: Any, weights_PB: Any) -> Any:
        of_client.counting = False
        made_up = torch.randn(x_Pd.shape, generator=chance)
        of_client.counting = True
        return made_up

    algorithm = algorithm_named(name, settings)
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
            raise RuntimeError(f"{name}: {finished.failed}")
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
        "up": _bytes([part[0] for part in _sent(finished)], size),
        "on_client": _bytes([part[0] for part in kept.values()], size),
        "on_server": _bytes(list(server.values()), size),
        "asked": sorted(seen.asked),
    }


def _sent(finished: Finished) -> list[Any]:
    return list(finished.sent.values())


def _bytes(parts: Sequence[Any], size: int) -> int:
    """Of vectors of the model's size; a few plain numbers beside them do not count."""
    import torch

    return sum(
        p.numel() * p.element_size() for p in parts if isinstance(p, torch.Tensor) and p.numel() == size
    )


def count_algorithm(
    *,
    name: str,
    settings: dict[str, Any],
    sizes: Sequence[int],
    steps: Sequence[int],
    participants: Sequence[int],
) -> Result:
    """Formulas that fit the counts at all of these sizes, steps and participants exactly."""
    import torch

    torch.set_num_threads(1)
    found = {
        (n, k, p): count_round(name=name, settings=settings, size=n, steps=k, participants=p)
        for n, k, p in product(sizes, steps, participants)
    }
    client, server = _by_vector(found, "client"), _by_vector(found, "server")
    result: Result = {
        "client": fitted({(k, p): client[k, p] for k, p in client}, 0),
        "server": fitted({(k, p): server[k, p] for k, p in server}, 1),
        "asked": found[sizes[0], steps[0], participants[0]]["asked"],
        "rounds": len(found),
    }
    for what in ("down", "up", "on_client", "on_server"):
        each = {Fraction(one[what], 4 * n) for (n, _, _), one in found.items()}
        if len(each) != 1:
            raise RuntimeError(f"{what} of {name} is no fixed number of vectors: {sorted(map(float, each))}")
        result[what] = float(each.pop())
    return result


Counts = dict[
    tuple[int, int], tuple[Fraction, Fraction]
]  # (K, P) -> additions and multiplications of vectors


def _by_vector(found: Mapping[tuple[int, int, int], Result], who: str) -> Counts:
    """How counts grow with n, by K and P; at least two sizes, and the same growth between any of them."""
    sizes = sorted({n for n, _, _ in found})
    grown: Counts = {}
    for _, k, p in found:
        slopes = set()
        for small, large in pairwise(sizes):
            pair = [found[n, k, p][who] for n in (small, large)]
            slopes.add(
                tuple((Fraction(b) - Fraction(a)) / (large - small) for a, b in zip(*pair, strict=True))
            )
        if len(slopes) != 1:
            raise RuntimeError(f"the counts of a {who} are not linear in the number of parameters")
        adds, multiplies = slopes.pop()
        grown[k, p] = adds, multiplies
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


def compare(run: Run, quick: bool) -> Report:
    jobs = [
        Job(
            label,
            count_algorithm,
            {
                "name": name,
                "settings": settings,
                "sizes": list(SIZES),
                "steps": list(STEPS),
                "participants": list(CLIENTS),
            },
        )
        for label, (name, settings) in ALGORITHMS.items()
    ]
    found = dict(zip(ALGORITHMS, run(jobs), strict=True))
    costs = {
        label: (Cost.of(*result["client"]), Cost.of(*result["server"])) for label, result in found.items()
    }
    tables = [
        _claims_table(found, costs),
        _cost_table("client", "K", 0, costs),
        _cost_table("server", "P", 1, costs),
        _memory_table(found),
    ]
    settings = {"sizes": SIZES, "steps": STEPS, "participants": CLIENTS, "population": POPULATION}
    return Report(tables, _notes(found), settings=settings)


Costs = Mapping[str, tuple[Cost, Cost]]


def _claims_table(found: Mapping[str, Result], costs: Costs) -> Table:
    rows = []
    for claim, rival in zip(CLAIMS[:2], ("SCAFFOLD/m", "FedDyn"), strict=True):
        cells = []
        for of, count in ((0, TYPICAL_STEPS), (1, 10)):
            gap = costs["AdaBest"][of].at(count) - costs[rival][of].at(count)
            printed = [PRINTED[label] for label in ("AdaBest", rival)]
            ours, theirs = ((line.client, line.server)[of].at(count) for line in printed)
            cells.append((gap, ours - theirs))
        rows.append((claim, _verdict([gap < 0 for gap, _ in cells]), _gaps(cells)))
    traffic = {label: (r["down"], r["up"]) for label, r in found.items()}
    total = {label: sum(both) / sum(traffic["FedAvg"]) for label, both in traffic.items()}
    same = [traffic[label] == traffic["FedAvg"] for label in ("AdaBest", "FedDyn")]
    rows.append(
        (CLAIMS[2], _verdict(same), f"AdaBest {total['AdaBest']:g}, FedDyn {total['FedDyn']:g} times")
    )
    shares = [total["SCAFFOLD/m"] == 1.5, total["SCAFFOLD"] == 2]
    rows.append((CLAIMS[3], _verdict(shares), f"{total['SCAFFOLD/m']:g} and {total['SCAFFOLD']:g} times"))
    three = [found[label] for label in ("SCAFFOLD/m", "FedDyn", "AdaBest")]
    alike = [len({r[where] for r in three}) == 1 for where in ("on_client", "on_server")]
    shown = ", ".join(f"{r['on_client']:g} and {r['on_server']:g}" for r in three)
    rows.append((CLAIMS[4], _verdict(alike), f"vectors on a client and on the server: {shown}"))
    return Table("Does our code support the claims?", ("the paper's claim", "ours", "by how much"), rows)


def _verdict(held: Sequence[bool]) -> str:
    return "yes" if all(held) else "in part" if any(held) else "no"


def _gaps(cells: Sequence[tuple[Fraction, Fraction]]) -> str:
    (client, client_printed), (server, server_printed) = cells
    return (
        f"client, K = {TYPICAL_STEPS}: {float(client):+g} vector operations (the paper's tables: "
        f"{float(client_printed):+g}); server: {float(server):+g} ({float(server_printed):+g})"
    )


def _cost_table(who: str, letter: str, of: int, costs: Costs) -> Table:
    rows = []
    for label, both in costs.items():
        counted = both[of]
        over = (counted - costs["FedAvg"][of]).show(letter)
        if label in PRINTED:
            lines = PRINTED[label], PRINTED["FedAvg"]
            printed, base = ((line.client, line.server)[of] for line in lines)
            shown = (printed.show(letter), counted.show(letter), (printed - base).show(letter), over)
            rows.append((label, *shown, _why(label, who)))
        else:
            rows.append((label, "-", counted.show(letter), "-", over, _why(label, who)))
    each = "K local steps" if who == "client" else "P participants"
    title = (
        f"Vector operations of the {who} in a round, {each}: s an addition of n numbers, m a multiplication"
    )
    columns = (who, "paper", "counted", "paper, over FedAvg", "counted, over FedAvg", "why they differ")
    return Table(title, columns, rows)


# One line for each difference, of what is not true of all algorithms alike.
_REASONS = {
    (
        "SCAFFOLD/m",
        "client",
    ): "h - h_i is made once a round and not in every step; h / w_i and g_i / (K eta) are "
    "divisions, and h - h_i is made again for h_i",
    ("FedDyn", "client"): "the same but for g_i",
    (
        "AdaBest",
        "client",
    ): "two multiplications, by mu and by 1/(t - t'), where the paper's line has both and counts one",
    ("SCAFFOLD/m", "server"): "h moves by the mean update itself, which saves a subtraction of models",
    ("FedDyn", "server"): "as SCAFFOLD/m",
    ("AdaBest", "server"): "the mean model is made of theta and the mean update",
    ("FedAvg", "client"): "g_i = theta - x is what clients send: one addition, in all algorithms",
    ("FedAvg", "server"): "the mean's division, and theta minus the mean update, in all algorithms",
    ("SCAFFOLD", "client"): "not in the paper's tables; the change of h_i is sent too",
    ("SCAFFOLD", "server"): "two means",
    ("FedAvg, weighted", "server"): "each update times its number of examples",
}


def _why(label: str, who: str) -> str:
    return _REASONS.get((label, who), "not in the paper's tables" if label not in PRINTED else "")


def _memory_table(found: Mapping[str, Result]) -> Table:
    rows = []
    for label, result in found.items():
        counted = [f"{result[what]:g}" for what in ("down", "up", "on_client", "on_server")]
        printed = ["-"] * 4
        if label in PRINTED:
            line = PRINTED[label]
            printed = [str(count) for count in (line.down, line.up, line.on_client, line.on_server)]
        elif label == "SCAFFOLD":
            printed[:2] = map(str, SCAFFOLD_TRAFFIC)
        pairs = [f"{ours} ({theirs})" for ours, theirs in zip(counted, printed, strict=True)]
        rows.append((label, *pairs, ", ".join(result["asked"]) or "nothing"))
    columns = (
        "algorithm",
        "down",
        "up",
        "kept by a client",
        "kept by the server",
        "clients ask for, besides theta",
    )
    return Table("Vectors of 4 n bytes, in brackets the paper's: sent in a round, and kept", columns, rows)


def _notes(found: Mapping[str, Result]) -> list[str]:
    rounds = sum(result["rounds"] for result in found.values())
    return [
        f"Counted in {rounds} rounds of the code that trains (local steps, what clients keep and send, the mean, the "
        f"server's update), with n of {SIZES}, K of {STEPS}, P of {CLIENTS}; gradients are made up and not counted. "
        "Each formula fits all of its counts exactly.",
        "A division counts as a multiplication, as does a factor other than 1 and -1 of a fused sum. Copies, changes "
        "of sign, comparisons (of which our check for numbers that are not finite is made) and roots do not count.",
        "All algorithms: our clients send g_i = theta - x and not x, one addition for each client, and the server "
        "divides the sum by P and takes it off theta, an addition and a multiplication. The paper counts neither g_i, "
        "which it computes as well, nor the division.",
        "AdaBest: h_i holds no mu here, so that the average size of clients may move. mu is multiplied with once a "
        "round, not in every step. The paper's h_i / (t - t') + mu g_i has two multiplications; its table has one.",
        "SCAFFOLD/m: the paper's client line repeats the server's by mistake; counted is h_i - h + g_i / (K eta). Here "
        "it takes one addition in each step, as AdaBest does: what is left of AdaBest's advantage is not in the steps "
        "but in three operations a round, and in what is sent.",
        "AdaBest's server keeps two vectors here, the mean model, which is the paper's one, and h, for those who look "
        "at it; theta is not counted for any. Server numbers such as the average size are a few bytes and left out.",
    ]


RECIPE = Recipe(
    "adabest-cost",
    "AdaBest: cost tables checked by counting vector operations and bytes (supplement, tables 4 and 5)",
    compare,
    "the same: it takes seconds",
)
