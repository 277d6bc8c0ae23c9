"""Seeded runs of two versions of Sordino, side by side: do they agree bit for bit?

Every method, every federated algorithm and server, three local rules, central and federated, public and private,
uninterrupted and resumed after an interruption. Compared are the weights (a digest of every bit), every line of the
history, the metrics, and what certificate.json and run.json say; figures of the machine and the time are not. A field
that only one version has is listed at the end.

    git worktree add /tmp/before COMMIT
    python benchmarks/same_runs.py --before /tmp/before [--only WORD]

With `--save FILE` it writes down what this version comes to; such a file may stand in for the other version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOT_COMPARED = ("seconds", "peak_memory_mib", "sordino_version", "created", "digest")
Case = tuple[str, Callable[..., Any], dict[str, Any]]


def cases() -> list[Case]:
    """Name, function, keywords."""
    import torch

    import sordino as sd
    from sordino.federated.algorithms import ALGORITHMS, SERVERS
    from sordino.methods import METHODS

    found: list[Case] = []
    common = {"epochs": 4, "batch_size": 40, "test": "digits", "seed": 5, "evaluations": 3}
    private = {
        "noise_multiplier": 1.1,
        "delta": 1e-4,
        "accountant": "rdp",
    }  # the quick one; budgets have the others
    for name, make in METHODS.items():
        if name == "composed":  # of parts that have cases of their own; not every version has it
            continue
        found.append(
            (f"train {name}", sd.train, {**common, **(private if make().private else {}), "method": name})
        )
    variants = {
        "dp-sgd momentum": sd.dp_sgd(momentum=0.9, schedule="cosine"),
        "dp-sgd quantile": sd.dp_sgd(target_quantile=0.5),
        "dp-sgd per layer": sd.dp_sgd(per_layer=True),
        "dp-adam average": sd.dp_adam(average=0.2),
        "adadp online": sd.adadp(online=True),
        "adadp discard": sd.adadp(threshold=0.1, discard=True, keep="full"),
        "adadp frozen": sd.adadp(freeze_after=2),
        "oso momentum": sd.oso(momentum=0.5),
        "dp-ftrl online": sd.dp_ftrl(online=True),
        "dp-ftrl average": sd.dp_ftrl(average=1.0, restart_every=2, momentum=0.0),
    }
    for name, method in variants.items():
        found.append((f"train {name}", sd.train, {**common, **private, "method": method}))
    for how in ("shuffled", "fixed-order", "shuffled-as-poisson"):
        found.append((f"train sampling {how}", sd.train, {**common, **private, "sampling": how}))
    users = torch.arange(300) // 3
    found += [
        ("train budget", sd.train, {**common, "budget": sd.Budget(3, 1e-4)}),
        ("train groups", sd.train, {**common, **private, "groups": users, "batch_size": 10}),
        ("train loss shown", sd.train, {**common, **private, "show_unprotected": True}),
        (
            "train prior",
            sd.train,
            {**common, **private, "public_loss": lambda theta: 0.01 * theta.square().sum()},
        ),
        ("train by default", sd.train, {"test": "digits", "seed": 5, "budget": sd.Budget(3, 1e-4)}),
    ]

    round_ = {
        "rounds": 6, "clients": 12, "per_round": 5, "local_epochs": 2, "batch_size": 9, "partition": "dirichlet:0.3",
        "test": "digits", "seed": 5, "evaluations": 3, "rate": 0.05, "engine": "stacked", "workers": 1,
    }  # fmt: skip
    for name in ALGORITHMS:
        for local in ("sgd", "adam", "adadp"):
            found.append(
                (f"federate {name} {local}", sd.federate, {**round_, "algorithm": name, "local": local})
            )
            found.append(
                (f"federate {name} {local} private", sd.federate,
                 {**round_, **private, "delta": 1e-2, "algorithm": name, "local": local})
            )  # fmt: skip
    for name, server in SERVERS.items():
        algorithm = sd.FedAvg(server=server() if callable(server) else server)  # a rule, or what makes one
        found.append((f"federate server {name}", sd.federate, {**round_, "algorithm": algorithm}))
        for noise in (sd.Gaussian(), sd.Tree()):
            with_noise = {**round_, **private, "delta": 1e-2, "algorithm": algorithm, "noise": noise}
            found.append((f"federate server {name} {type(noise).__name__}", sd.federate, with_noise))
    own = sd.OwnLoop(lambda theta, inputs, targets, generator: theta * 0.99 + 0.001 * len(targets))
    user = {**round_, **private, "delta": 1e-2}
    conditions = sd.Conditions(drop_out=0.2, slowness=0.3, deadline=1.5)
    found += [
        ("federate budget", sd.federate, {**round_, "budget": sd.Budget(8, 1e-2)}),
        ("federate online", sd.federate, {**user, "clip": sd.Online(0.1)}),
        ("federate fixed", sd.federate, {**user, "clip": sd.Fixed(0.1), "participation": sd.WithoutReplacement(4)}),
        ("federate in order", sd.federate, {**user, "noise": sd.Tree(), "participation": sd.FixedOrder(4)}),
        ("federate file", sd.federate, {**round_, "algorithm": "adabest", "store": "file"}),
        ("federate conditions", sd.federate, {**round_, "conditions": conditions}),
        ("federate conditions private", sd.federate, {**user, "conditions": conditions}),
        ("federate over-selection", sd.federate, {**round_, "conditions": sd.Conditions(over_selection=1.5)}),
        ("federate holdout", sd.federate, {**round_, "holdout": 3}),
        ("federate debug", sd.federate, {**round_, "engine": "debug"}),
        ("federate two workers", sd.federate, {**round_, "workers": 2, "chunk": 2}),
        ("federate own loop", sd.federate, {**round_, "algorithm": "fedavg", "local": own}),
        ("federate observed", sd.federate, {**round_, "observe": lambda seen: {"norm": float(seen.theta.norm())}}),
        ("federate shown", sd.federate, {**user, "show_unprotected": True}),
    ]  # fmt: skip
    return found


def outcome(function: Callable[..., Any], keywords: dict[str, Any], out: Path | None, interrupt: bool) -> Any:
    """What a run comes to, or the line with which it is refused."""
    import torch

    from sordino.data import load
    from sordino.runs import RunDirectory

    digits = load("digits")
    inputs, targets = digits.train[0][:300], digits.train[1][:300]
    assert digits.test is not None
    if keywords.get("test") == "digits":
        keywords = {**keywords, "test": (digits.test[0][:100], digits.test[1][:100])}

    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)
        )

    def run(resume: bool) -> Any:
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        kept = {} if out is None else {"out": out, "resume": resume}
        return function(model(), loss, (inputs, targets), progress=False, **keywords, **kept)

    try:
        if interrupt:
            append, left = RunDirectory.append_history, [2]

            def interrupted(self: RunDirectory, line: dict[str, Any]) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                append(self, line)

            RunDirectory.append_history = interrupted  # type: ignore[method-assign]
            try:
                run(False)
            except KeyboardInterrupt:
                pass
            finally:
                RunDirectory.append_history = append  # type: ignore[method-assign]
        done = run(interrupt)
    except ValueError as error:
        return {"refused": str(error)}
    weights = b"".join(value.detach().numpy().tobytes() for value in done.model.state_dict().values())
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "history": done.history,
        "metrics": done.metrics,
        "certificate": kept_fields(done.certificate),
        "summary": kept_fields(done.summary),
    }


def kept_fields(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in NOT_COMPARED}


def worker(only: str) -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    for name, function, keywords in cases():
        if only not in name:
            continue
        for way in ("in one go", "interrupted and resumed"):
            with tempfile.TemporaryDirectory() as folder:
                out = None if way == "in one go" else Path(folder) / "run"
                found = outcome(function, keywords, out, way != "in one go")
            print(json.dumps([f"{name}, {way}", found], default=str), flush=True)


def lines_of(tree: Path, only: str) -> Iterator[str]:
    """A line for each run of the version in ``tree``, or that an earlier one has written down."""
    if tree.is_file():
        with tree.open() as file:
            yield from (line for line in file if only in json.loads(line)[0])
        return
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, __file__, "--worker", "--only", only]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield from process.stdout
    assert process.returncode == 0, f"the version in {tree} failed"


def compared(before: Any, after: Any, extra: set[str]) -> list[str]:
    """The places in which two outcomes differ."""
    if "refused" in before or "refused" in after:
        return [] if ("refused" in before) == ("refused" in after) else ["one is refused"]
    different = [part for part in ("weights", "history", "metrics") if before[part] != after[part]]
    for part in ("certificate", "summary"):
        for name in before[part].keys() | after[part].keys():
            if name not in before[part] or name not in after[part]:
                extra.add(f"{part}.{name} is {'new' if name in after[part] else 'gone'}")
            elif before[part][name] != after[part][name]:
                different.append(f"{part}.{name}")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        return worker(options.only)
    if options.save is not None:
        with options.save.open("w") as file:
            file.writelines(lines_of(ROOT, options.only))
        return
    extra: set[str] = set()
    same = refused = bad = 0
    for old, new in zip(lines_of(options.before, options.only), lines_of(ROOT, options.only), strict=True):
        (name, before), (again, after) = json.loads(old), json.loads(new)
        assert name == again
        different = compared(before, after, extra)
        if different:
            bad += 1
            print(f"DIFFERENT  {name}: {', '.join(different)}")
            if options.verbose:
                print(json.dumps({"before": before, "after": after}, indent=1))
        elif "refused" in before:
            refused += 1
            if before["refused"] != after["refused"]:
                print(f"refused, in other words: {name}\n    {before['refused']}\n    {after['refused']}")
        else:
            same += 1
    print(f"{same} runs agree bit for bit, {refused} are refused by both, {bad} differ")
    for line in sorted(extra):
        print(line)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
