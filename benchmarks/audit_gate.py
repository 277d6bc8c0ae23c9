"""What an adversary who sees every release can prove about sound methods, beside what is claimed.

Each line is an audit of the real gate on made-up neighbours (`sordino audit gate`): the claim, the lower bound that
assumes nothing, and the one that takes the trade-off for a Gaussian's, both at 95 % and at 99.9 % confidence. At 99.9 %
none may exceed the claim (at 95 % one in twenty lines may, by chance), and the last should come close for plain DP-SGD.

    python benchmarks/audit_gate.py                  # about ten minutes on one core
    python benchmarks/audit_gate.py --runs 300       # about a minute
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from sordino.auditing import GateAudit, audit_gate
from sordino.methods import method_named
from sordino.privacy import show_epsilon

DELTA = 1e-5
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dp-sgd": ("dp-sgd", {}, {}),
    "dp-sgd, one release": ("dp-sgd", {}, {"releases": 1, "noise_multiplier": 1 / 3}),
    "dp-sgd, Poisson 0.5": ("dp-sgd", {}, {"sampling_rate": 0.5, "noise_multiplier": 0.6}),
    "dp-sgd, shuffled 0.25": ("dp-sgd", {}, {"sampling": "shuffled", "releases": 8}),
    "auto": ("auto", {}, {}),
    "adadp": ("adadp", {}, {}),
    "oso": ("oso", {}, {}),
    "dp-ftrl": ("dp-ftrl", {}, {"releases": 8}),
    "dp-ftrl, online threshold": ("dp-ftrl", {"online": True}, {"releases": 8}),
    "quantile clipping": ("dp-sgd", {"target_quantile": 0.5}, {}),
    "groups": ("dp-sgd", {}, {"unit": "user"}),
    "federation": ("dp-sgd", {}, {"federated": True}),
    "federation, dp-ftrl": ("dp-ftrl", {}, {"federated": True, "releases": 8}),
}
COLUMNS = ("audited", "mu", "claimed", "95 %", "99.9 %", "GDP 95 %", "GDP 99.9 %", "of the claim", "verdict")


def row(name: str, found: GateAudit) -> str:
    audit = found.audit
    likely, sure = audit.bounds
    mu = audit.claimed.gdp_mu
    cells = [
        name,
        "" if mu is None else f"{mu:.3f}",
        show_epsilon(audit.claimed.epsilon, 3),
        *(f"{value:.3f}" for value in (likely.epsilon, sure.epsilon, likely.gdp_epsilon, sure.gdp_epsilon)),
        f"{likely.gdp_epsilon / audit.claimed.epsilon:.0%}",
        "VIOLATED" if found.violated else "stands",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "audit_gate.md")
    chosen = parser.parse_args()
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    print("\n".join(lines), flush=True)
    violated = False
    for number, (name, (method, settings, options)) in enumerate(CASES.items()):
        started = time.monotonic()
        plan = {"noise_multiplier": 1.0, "releases": 4, "delta": DELTA, **options}
        seed = 1000 * chosen.seed + number  # with one seed all Gaussians would show the same
        found = audit_gate(method_named(method, settings), runs=chosen.runs, seed=seed, **plan)
        lines.append(row(name, found))
        violated = violated or found.violated
        print(lines[-1], f"  {time.monotonic() - started:.0f} s", flush=True)
    header = (
        f"# What can be proved about the gate\n\n`python benchmarks/audit_gate.py --runs {chosen.runs}`: epsilon at "
        f"delta {DELTA:g}, {chosen.runs} runs with the unit and as many without it; in the last but one column how "
        "close the GDP bound comes at 95 %.\n\n"
    )
    chosen.out.write_text(header + "\n".join(lines) + "\n")
    sys.exit(2 if violated else 0)


if __name__ == "__main__":
    main()
