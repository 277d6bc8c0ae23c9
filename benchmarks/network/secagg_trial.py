"""Can Flower's SecAgg+ carry the sums of a private federation? Its own workflow and mod, on vectors of norm C = 1.

Nodes live in this process and messages cross as protobuf, so that bytes are those of the wire; nothing sleeps, so that
seconds are those of the work. ``--simulation`` does one round in Flower's simulation engine (Ray) as well. A vector
stands for what a node would send: the sum of its clients' clipped updates.

    FLWR_TELEMETRY_ENABLED=0 FLWR_HOME=/tmp/flwr python benchmarks/network/secagg_trial.py --simulation

The search for a mask's seed goes through 2^BITS of the 2^32 seeds: the block the right one is in (``--bits 32`` for
all of them, and with no help).
"""

from __future__ import annotations

import argparse
import logging
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
import numpy.typing as npt
from flwr.app import Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
    bytes_to_ndarray,
    ndarray_to_bytes,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.server import LegacyContext, ServerApp, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.default_workflows import default_fit_workflow
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key, generate_key_pairs
from flwr.supercore.task_identity import TaskIdentity

from sordino.noise.grid import grid_for

Vector = npt.NDArray[np.float64]
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")
SECAGG = "secaggplus_configs"
MODULUS = 1 << 32
LABEL = "clinic-7"  # a metric that a client adds to its answer


# The nodes --------------------------------------------------------------------------------------------


def vector_of(place: int, size: int, kind: str = "spread") -> Vector:
    """What a node sends, of norm 1: spread over all coordinates, or all of it in the first."""
    if kind == "first":
        return np.asarray(np.eye(1, size)[0])
    drawn = np.random.default_rng(place).standard_normal(size)
    return np.asarray(drawn / np.linalg.norm(drawn) * (1 - 1e-12))


def answer(message: Any, context: Any) -> Any:
    """A client of the message API; what it says has to have the form of a legacy FitRes, or the mod cannot read it."""
    config = compat.recorddict_to_fitins(message.content, keep_input=True).config
    vector = vector_of(context.node_config["partition-id"], config["size"], config["kind"])
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), config["weight"], {"name": LABEL})
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def client_app(mods: Sequence[Any]) -> Any:
    app = ClientApp(mods=list(mods))
    app.train()(answer)
    return app


def lying(add: Vector, weight: int = 0) -> Callable[..., Any]:
    """A node that adds whole numbers to its masked vector, and to its masked weight."""

    def mod(message: Any, context: Any, following: Any) -> Any:
        reply = following(message, context)
        said = reply.content.config_records[SECAGG]
        if "masked_params" in said:
            first, second = (bytes_to_ndarray(each) for each in said["masked_params"])
            parts = (first + weight) % MODULUS, (second + add.astype(np.int64)) % MODULUS
            said["masked_params"] = [ndarray_to_bytes(each) for each in parts]
        return reply

    return mod


# The server -------------------------------------------------------------------------------------------


class Nodes:
    """A grid whose nodes are here. ``lost`` says who gives no answer in which stage (or one that comes too late).

    With ``greedy`` nodes are told in the last stage that this one is there, and that it is gone.
    """

    def __init__(
        self,
        count: int,
        secure: bool = True,
        lost: tuple[int, str] | None = None,
        liar: Any = None,
        greedy: int | None = None,
    ) -> None:
        self.run = SimpleNamespace(run_id=1)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
        numbers = np.random.default_rng(5).permutation(count) + 1000
        self.lost, self.greedy = lost, greedy
        self.apps: dict[int, Any] = {}
        self.contexts: dict[int, Any] = {}
        for place, number in enumerate(numbers.tolist()):
            self.contexts[number] = Context(1, number, {"partition-id": place}, RecordDict(), {})
            mods = [*([liar] if liar and place == 0 else []), *([secaggplus_mod] if secure else [])]
            self.apps[number] = client_app(mods)
        self.down: dict[int, int] = defaultdict(int)
        self.up: dict[int, int] = defaultdict(int)
        self.seen: list[tuple[int, str, Any]] = []  # all that a server or a SuperLink could keep
        self.errors: list[str] = []

    def number_of(self, place: int | None) -> int:
        return next(
            node for node, context in self.contexts.items() if context.node_config["partition-id"] == place
        )

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        replies = []
        for sent in messages:
            node = sent.metadata.dst_node_id
            data = message_to_proto(sent)
            self.down[node] += data.ByteSize()
            message = message_from_proto(data)
            records = message.content.config_records
            stage = str(records[SECAGG]["stage"]) if SECAGG in records else ""
            spied = self.greedy is not None and stage == "unmask"
            if spied:
                records[SECAGG]["dead_nids"] = [self.number_of(self.greedy)]
            try:
                reply = self.apps[node](message, self.contexts[node])
            except Exception as error:  # as a node does
                text = repr(error.__cause__ or error)
                self.errors.append(text)
                reply = Message(Error(code=2, reason=text), reply_to=message)
            data = message_to_proto(reply)
            self.up[node] += data.ByteSize()
            reply = message_from_proto(data)
            self.seen.append((node, stage, reply))
            if spied and not reply.has_error():  # the workflow gets what it asked for, and notices nothing
                reply = message_from_proto(data)
                said = reply.content.config_records[SECAGG]
                said["nids"], said["shares"] = said["nids"][:-1], said["shares"][:-1]
            place = self.contexts[node].node_config["partition-id"]
            if self.lost != (place, stage):
                replies.append(reply)
        return replies


class Listener:
    """A strategy that asks everybody, and keeps what comes."""

    def __init__(self, size: int, weight: int = 1, kind: str = "spread") -> None:
        self.size, self.config = size, {"size": size, "weight": weight, "kind": kind}
        self.results: list[Any] = []

    def initialize_parameters(self, client_manager: Any) -> Any:
        return ndarrays_to_parameters([np.zeros(self.size, dtype=np.float32)])

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        proxies = client_manager.sample(client_manager.num_available())
        return [(proxy, FitIns(parameters, dict(self.config))) for proxy in proxies]

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        self.results = results
        return None, {}

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        return []

    def evaluate(self, server_round: int, parameters: Any) -> None:
        return None

    @property
    def total(self) -> Vector:
        """The sum: what comes is a mean, by weights that all are the same here."""
        mean = parameters_to_ndarrays(self.results[0][1].parameters)[0]
        return np.asarray(mean * len(self.results), dtype=np.float64)


def one_round(grid: Any, listener: Listener, workflow: Any) -> float:
    """Seconds of a round of Flower's own workflow."""
    taken = []

    def timed(grid: Any, context: Any) -> None:
        start = time.perf_counter()
        workflow(grid, context)
        taken.append(time.perf_counter() - start)

    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=1), strategy=listener
    )
    DefaultWorkflow(fit_workflow=timed)(grid, context)
    return taken[0]


def secagg(**how: Any) -> Any:
    return SecAggPlusWorkflow(1.0, 0.6, **how)


def best(nodes: int) -> dict[str, Any]:
    """Vectors of norm at most 1 have coordinates up to 1, and so many of them fit the modulus."""
    return {"max_weight": 1.0, "clipping_range": 1.0, "quantization_range": (MODULUS - 1) // nodes}


def on_grid(size: int) -> dict[str, Any]:
    """The step of the gate's noise, if it has room enough."""
    step = grid_for(1.0, size)
    return {"max_weight": 1.0, "clipping_range": 1.0, "quantization_range": round(2 / step)}


def step_of(how: dict[str, Any]) -> float:
    """Between two numbers of a node that can be told apart; its weight is 1."""
    cells: int = how.get("quantization_range", 1 << 22)
    clip: float = how.get("clipping_range", 8.0)
    return 2 * clip / cells * float(how.get("max_weight", 1000.0))


# What is tried ------------------------------------------------------------------------------------------


def accuracy(nodes: int, sizes: Sequence[int]) -> None:
    print(f"\n## Error of the sum of {nodes} nodes (C = 1)\n")
    print(
        "| numbers | setting | step | worst coordinate | in norm | norm of one rounded vector, most of 20 "
        "| one client moves the sum by at most |\n|---:|---|---:|---:|---:|---:|---:|"
    )
    beside = []
    for size in sizes:
        settings = {
            "default": {},
            "default, max_weight 1": {"max_weight": 1.0},
            "best": best(nodes),
            "the gate's grid": on_grid(size),
        }
        exact = sum((vector_of(place, size) for place in range(nodes)), np.zeros(size))
        for name, how in settings.items():
            listener = Listener(size)
            one_round(Nodes(nodes), listener, secagg(**how))
            off = listener.total - exact
            step = step_of(how)
            scale = float(how.get("max_weight", 1000.0))
            clip, cells = how.get("clipping_range", 8.0), how.get("quantization_range", 1 << 22)
            norms = [
                np.linalg.norm(
                    dequantize(quantize([vector_of(0, size) / scale], clip, cells), clip, cells)[0] * scale
                )
                for _ in range(20)
            ]
            print(
                f"| {size:,} | {name} | {step:.1e} | {abs(off).max():.1e} | {np.linalg.norm(off):.1e} "
                f"| {max(norms):.7g} | {1 + np.sqrt(size) * step:.7g} |"
            )
            if name == "the gate's grid":
                steps = listener.total / step
                beside.append(float(abs(steps - steps.round()).max()))
    print(f"\nOn the gate's grid sums are off it by {max(beside):.0e} of a step.")


def costs(nodes: int, sizes: Sequence[int], repeats: int) -> None:
    print(f"\n## Cost of a round, {nodes} nodes, median of {repeats}\n")
    print("| numbers | | seconds | bytes to a node | bytes from a node |\n|---:|---|---:|---:|---:|")
    for size in sizes:
        for name in ("without", "SecAgg+"):
            seconds = []
            for _ in range(repeats):
                grid = Nodes(nodes, secure=name != "without")
                workflow = default_fit_workflow if name == "without" else secagg(**best(nodes))
                seconds.append(one_round(grid, Listener(size), workflow))
            down, up = (max(side.values()) for side in (grid.down, grid.up))
            print(f"| {size:,} | {name} | {statistics.median(seconds):.3f} | {down:,} | {up:,} |")


def dropouts(nodes: int, size: int) -> None:
    print(f"\n## One of {nodes} nodes gives no answer in a stage\n")
    print("| stage | the round | error of the others' sum | what nodes said |\n|---|---|---:|---|")
    for stage in STAGES:
        grid, listener = Nodes(nodes, lost=(2, stage)), Listener(size)
        one_round(grid, listener, secagg(**best(nodes)))
        said = f"{len(grid.errors)} x {grid.errors[0][:60]}" if grid.errors else "-"
        if not listener.results:
            print(f"| {stage} | is lost | - | {said} |")
            continue
        counted = [place for place in range(nodes) if place != 2 or stage == "unmask"]
        exact = sum((vector_of(place, size) for place in counted), np.zeros(size))
        off = float(np.linalg.norm(listener.total - exact))
        print(f"| {stage} | counts, with {len(counted)} of {nodes} | {off:.1e} | {said} |")


def in_the_clear(nodes: int, size: int) -> None:
    grid = Nodes(nodes)
    one_round(grid, Listener(size, weight=437), secagg())
    reply = next(reply for _, stage, reply in grid.seen if stage == "collect_masked_vectors")
    print("\n## In the clear beside a masked vector\n")
    for name, record in {**reply.content.metric_records, **reply.content.config_records}.items():
        if name != SECAGG:
            print(f"- {name}: {dict(record)}")


def overflow(nodes: int, sizes: Sequence[int]) -> None:
    print(f"\n## Overflow: {nodes} nodes send 1 in the first coordinate\n")
    for name, cells in (("2^32 / nodes", MODULUS // nodes), ("(2^32 - 1) / nodes", (MODULUS - 1) // nodes)):
        listener = Listener(10, kind="first")
        one_round(Nodes(nodes), listener, secagg(**{**best(nodes), "quantization_range": cells}))
        print(f"- quantization_range {name}: the sum is {listener.total[0]:.6f}")
    listener = Listener(10, kind="first")
    how = {**best(nodes), "quantization_range": (1 << 31) - 1, "modulus_range": 1 << 40}
    one_round(Nodes(nodes), listener, secagg(**how))
    print(f"- modulus 2^40 (the documents allow no more than 2^32), 2^31 - 1 cells: {listener.total[0]:.6f}")
    print(f"- default quantization_range: {(MODULUS - 1) // (1 << 22):,} nodes at most")
    for size in sizes:  # a range of C for each client, so that no sum is cut: steps of clients * C / 2^31
        most = 0.001 * 2**31 / np.sqrt(size)
        print(f"- {size:,} numbers: {most:,.0f} clients a round before rounding takes 0.1 % of C")


def lies(nodes: int, size: int) -> None:
    print("\n## One node that lies\n")
    exact = sum((vector_of(place, size) for place in range(nodes)), np.zeros(size))
    settings: dict[str, dict[str, Any]] = {"default, max_weight 1": {"max_weight": 1.0}, "best": best(nodes)}
    for name, how in settings.items():
        step, cells = step_of(how), how.get("quantization_range", 1 << 22)
        at = (
            np.round(exact / step) + nodes * cells / 2
        )  # where the sum is, of whole numbers up to the modulus
        listener = Listener(size)
        one_round(Nodes(nodes, liar=lying(np.floor(0.99 * MODULUS - at))), listener, secagg(**how))
        off = listener.total - exact
        print(
            f"- {name}: moves each coordinate by up to {abs(off).max():.3g} C, the sum by {np.linalg.norm(off):.3g} C"
        )
        add = np.zeros(size)
        add[0] = MODULUS - 2000 - at[0]  # room for what rounding does
        sums = []
        for client in (
            0.0,
            4000 * step,
        ):  # of an honest node: not there, or there with so much of one coordinate
            lifted = add.copy()
            lifted[0] += round(client / step)  # stands for it: the sum does not tell whose it is
            listener = Listener(size)
            one_round(Nodes(nodes, liar=lying(lifted)), listener, secagg(**how))
            sums.append(listener.total[0])
        print(f"  at the edge of the modulus one honest client's {4000 * step:.2g} C moves the sum by "
              f"{abs(sums[1] - sums[0]):.4g} C")  # fmt: skip
    for name, more in (("half the modulus more", best(nodes)["quantization_range"] * nodes // 2),
                       ("all weights gone", -best(nodes)["quantization_range"] * nodes)):  # fmt: skip
        listener = Listener(size)
        with suppress(ZeroDivisionError), np.errstate(all="ignore"):
            one_round(Nodes(nodes, liar=lying(np.zeros(size), more)), listener, secagg(**best(nodes)))
        along = listener.total @ exact / (exact @ exact) if listener.results else float("nan")
        print(f"- lies about its masked weight ({name}): the sum is multiplied by {along:.3g}")


# What masks are made of -----------------------------------------------------------------------------------


def pair_bits(count: int = 300) -> int:
    """In how many bits the seeds of pairwise masks differ at all."""
    found = []
    own, _ = generate_key_pairs()
    for _ in range(count):
        words = np.frombuffer(generate_shared_key(own, generate_key_pairs()[1]), dtype="<u4")
        found.append(int(np.bitwise_xor.reduce(words)))
    return bin(int(np.bitwise_or.reduce(np.array(found) ^ found[0]))).count("1")


def first_outputs(seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The first number of ``np.random.RandomState(seed)`` for many seeds: MT19937, as it is written down."""
    state = seeds.copy()
    shifted = np.empty_like(state)
    first = state & np.uint32(0x80000000)
    for index in range(1, 398):
        np.right_shift(state, np.uint32(30), out=shifted)
        state ^= shifted
        state *= np.uint32(1812433253)
        state += np.uint32(index)
        if index == 1:
            first |= state & np.uint32(0x7FFFFFFF)
    odd = (first & np.uint32(1)) * np.uint32(0x9908B0DF)
    out: npt.NDArray[np.uint32] = state ^ (first >> np.uint32(1)) ^ odd
    out ^= out >> np.uint32(11)
    out ^= (out << np.uint32(7)) & np.uint32(0x9D2C5680)
    out ^= (out << np.uint32(15)) & np.uint32(0xEFC60000)
    out ^= out >> np.uint32(18)
    return out


def without_pairs(grid: Nodes, victim: int) -> tuple[list[Any], int, list[bytes]]:
    """A node's masked vector without its pairwise masks, its weight, and shares of its own mask's seed.

    From nothing but what crossed.
    """
    keys, shares, seeds, masked, weight = {}, [], [], [], 0
    for node, stage, reply in grid.seen:
        said = reply.content.config_records[SECAGG]
        if stage == "setup":
            keys[node] = said["pk1"]
        elif stage == "collect_masked_vectors" and node == victim:
            masked = [bytes_to_ndarray(each) for each in said["masked_params"]]
            weight = compat.recorddict_to_fitres(reply.content, keep_input=True).num_examples
        elif stage == "unmask":
            own = [s for owner, s in zip(said["nids"], said["shares"], strict=True) if owner == victim]
            shares += own[-1:]  # of its key
            seeds += own[:-1]
    secret = bytes_to_private_key(combine_shares(shares))
    shapes = [each.shape for each in masked]
    for node, key in keys.items():
        if node != victim:
            pair = pseudo_rand_gen(generate_shared_key(secret, bytes_to_public_key(key)), MODULUS, shapes)
            sign = -1 if victim > node else 1
            masked = [(each + sign * mask) % MODULUS for each, mask in zip(masked, pair, strict=True)]
    return masked, weight, seeds


def greedy_server(nodes: int, size: int) -> None:
    """A server that says of a node both that it is there and that it is gone gets both of its masks."""
    print("\n## A server that asks for both masks of a node\n")
    how = best(nodes)
    grid, listener = Nodes(nodes, greedy=2), Listener(size)
    one_round(grid, listener, secagg(**how))
    masked, _, seeds = without_pairs(grid, grid.number_of(2))
    mask = pseudo_rand_gen(combine_shares(seeds), MODULUS, [each.shape for each in masked])
    found = dequantize([(masked[1] - mask[1]) % MODULUS], how["clipping_range"], how["quantization_range"])[0]
    off = np.linalg.norm(found - vector_of(2, size))
    print(
        f"- {len(grid.errors)} of {nodes} nodes refuse; it has the node's own vector, off by {off:.1e}, its rounding"
    )


def late_vector(nodes: int, size: int, bits: int) -> None:
    """A masked vector that comes too late is kept, the protocol goes on as written, and one mask is left: 32 bits."""
    print("\n## A masked vector that came too late\n")
    how = best(nodes)
    grid, listener = Nodes(nodes, lost=(2, "collect_masked_vectors")), Listener(size)
    one_round(grid, listener, secagg(**how))
    victim = grid.number_of(2)
    masked, weight, _ = without_pairs(grid, victim)
    shapes = [each.shape for each in masked]
    # The weight is known, since it came in the clear: so is the first number of the mask that is left.
    known = np.uint32(
        (int(masked[0][0]) - round(weight / how["max_weight"] * how["quantization_range"])) % MODULUS
    )
    true = grid.contexts[victim].state.config_records["secaggplus_state"][
        "rd_seed"
    ]  # only to choose the block
    right = int(np.bitwise_xor.reduce(np.frombuffer(true, dtype="<u4")))
    begin, block = right >> bits << bits, 1 << 15

    def unmasked(seed: int) -> npt.NDArray[np.int64]:
        mask = pseudo_rand_gen(seed.to_bytes(4, "little"), MODULUS, shapes)
        return np.asarray((masked[1] - mask[1]) % MODULUS)

    def fits(seed: int) -> bool:
        return bool(unmasked(seed).max() <= how["quantization_range"])

    start = time.perf_counter()
    for low in range(begin, begin + (1 << bits), block):
        seeds = np.arange(low, low + block, dtype=np.uint64).astype(np.uint32)
        hits = [seed for seed in seeds[first_outputs(seeds) == known].tolist() if fits(seed)]
        if hits:
            break
    seconds, searched = time.perf_counter() - start, low + block - begin
    (seed,) = hits
    found = dequantize([unmasked(seed)], how["clipping_range"], how["quantization_range"])[0]
    off = np.linalg.norm(found - vector_of(2, size))
    print(
        f"- found the node's own vector, of norm {np.linalg.norm(found):.4f}; off by {off:.1e}, its rounding"
    )
    print(
        f"- after {searched:,} seeds in {seconds:.1f} s: all 2^32 take {seconds / searched * 2**32 / 60:.0f} minutes"
    )
    print(f"- seeds of pairwise masks differ in {pair_bits()} bits")


# Elsewhere --------------------------------------------------------------------------------------------------


def simulation(nodes: int, size: int) -> None:
    from flwr.simulation import run_simulation

    print("\n## In Flower's simulation engine\n")
    for name, mods, workflow in (
        ("without", [], default_fit_workflow),
        ("SecAgg+", [secaggplus_mod], secagg(**best(nodes))),
    ):
        listener, server = Listener(size), ServerApp()
        seconds: list[float] = []

        def main(
            grid: Any, context: Any, say: Any = listener, flow: Any = workflow, into: list[float] = seconds
        ) -> None:
            try:
                flow(grid, context)
            except TypeError:  # of a plain Context, as a message-based ServerApp has it
                into += [one_round(grid, say, flow) for _ in range(2)]

        server.main()(main)
        cores = {"client_resources": {"num_cpus": 1}}
        run_simulation(server, client_app(mods), nodes, backend_config=cores)
        print(f"- {name}: {nodes} nodes, {size:,} numbers, {seconds[1]:.1f} s for the second round", end="")
        if mods:
            exact = sum((vector_of(place, size) for place in range(nodes)), np.zeros(size))
            print(f", error in norm {np.linalg.norm(listener.total - exact):.1e}", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_410, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bits", type=int, default=24)
    parser.add_argument("--simulation", action="store_true")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"flwr {version('flwr')}, python {platform.python_version()}")
    accuracy(given.nodes, given.sizes)
    costs(given.nodes, given.sizes, given.repeats)
    dropouts(given.nodes, given.sizes[0])
    in_the_clear(given.nodes, given.sizes[0])
    overflow(given.nodes, given.sizes)
    lies(given.nodes, given.sizes[0])
    greedy_server(given.nodes, given.sizes[0])
    late_vector(given.nodes, given.sizes[0], given.bits)
    if given.simulation:
        simulation(given.nodes, given.sizes[0])


if __name__ == "__main__":
    main()
