"""What one training run with canaries in it proves about epsilon, on MNIST at epsilon 10, beside what is claimed.

Each method trains on some rows of MNIST with canaries among them (`sordino audit run`), once to be seen in every
release and once in its final parameters; then with half the noise, planted, which has to be caught in the releases.

    SORDINO_DATA=... python benchmarks/audit_run.py             # some minutes on one core
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sordino.data import load
from sordino.methods import method_named
from sordino.models import build_model
from sordino.noise import GaussianNoise
from sordino.privacy import show_epsilon
from sordino.run_auditing import RunAudit, audit_federation, audit_run
from sordino.tasks import classification

RESULTS = Path(__file__).parent / "results" / "audit_run.md"
BUDGET = (10.0, 1e-5)
SGD = {"threshold": 1.0, "learning_rate": 0.5}
ROWS, CANARIES = 6000, 2000
FULL = {"batch_size": ROWS + CANARIES, "epochs": 50}
SMALL = {"batch_size": 400, "epochs": 5}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dp-sgd, all rows in every step": ("dp-sgd", SGD, FULL),
    "dp-sgd, Poisson batches": ("dp-sgd", SGD, SMALL),
    "adadp": ("adadp", {}, SMALL),
    "oso": ("oso", {}, SMALL),
    "dp-ftrl": ("dp-ftrl", {}, SMALL),
    "auto": ("auto", {}, SMALL),
    "quantile clipping": ("dp-sgd", {"target_quantile": 0.5, "learning_rate": 0.5}, SMALL),
    "users of 5 rows": ("dp-sgd", SGD, {**SMALL, "batch_size": 160, "groups": torch.arange(ROWS) // 5}),
    "federation": ("federation", {}, {"rounds": 20, "clients": 200, "per_round": 220}),
}
COLUMNS = ("audited", "sought in", "claimed", "assuming nothing", "f-DP, if Gaussian", "canaries apart",
           "apart, if Gaussian", "right of all guesses", "verdict")  # fmt: skip


@contextmanager
def noise_times(factor: float) -> Iterator[None]:
    """All noise scaled, and nothing else told: a bug, planted."""
    kept = GaussianNoise.add_, GaussianNoise.accumulate_

    def planted(draw: Any) -> Any:
        return lambda self, vector, std, *rest: draw(self, vector, factor * std, *rest)

    try:
        GaussianNoise.add_, GaussianNoise.accumulate_ = map(planted, kept)  # type: ignore[method-assign]
        yield
    finally:
        GaussianNoise.add_, GaussianNoise.accumulate_ = kept  # type: ignore[method-assign]


def audited(name: str, see: str) -> RunAudit:
    method, settings, options = CASES[name]
    loaded = load("mnist")
    rows = loaded.train[0][:ROWS], loaded.train[1][:ROWS]
    torch.manual_seed(0)
    model = build_model("mlp:32", loaded.input_shape, loaded.classes)
    common: dict[str, Any] = {
        "canaries": CANARIES,
        "see": see,
        "budget": BUDGET,
        "seed": list(CASES).index(name),  # one for all would be the same noise for all
        "progress": False,
    }
    if method == "federation":
        return audit_federation(model, classification(), rows, workers=1, local_epochs=1, **options, **common)
    how = method_named(method, settings)
    return audit_run(model, classification(), rows, method=how, **options, **common)


def row(name: str, found: RunAudit) -> str:
    judged = found.found
    apart = judged.apart.bounds[-1] if judged.apart is not None else None
    cells = [
        name,
        found.see,
        show_epsilon(judged.claimed.epsilon, 2),
        f"{judged.epsilon:.2f}",
        f"{judged.gdp_epsilon:.2f}",
        "" if apart is None else f"{apart.epsilon:.2f}",
        "" if apart is None else f"{apart.gdp_epsilon:.2f}",
        f"{judged.guesses[0].right / judged.guesses[0].made:.1%}",
        "REFUTED" if found.violated else "stands",
    ]
    return f"| {' | '.join(cells)} |"


ABOUT = f"""# What one run shows

`python benchmarks/audit_run.py`: the first {ROWS} training rows of MNIST and {CANARIES} canaries, an MLP of 32 hidden
units, one run each, seeded; epsilon at delta {BUDGET[1]:g}. Lower bounds, all at once with 95 % confidence:

- *assuming nothing*: Steinke, Nasr and Jagielski (2023);
- *f-DP, if Gaussian*: Mahloujifar, Melis and Chaudhuri (2024), read as the epsilon of a Gaussian's trade-off;
- *canaries apart*: each canary as a run of its own, which holds where nothing ties them together, and the same read as
  the epsilon of a Gaussian's trade-off. Only where releases are seen does it belong to the verdict, and to what holds
  all at once.

"Sought in releases" is white box: every noised gradient. "Model" is the final parameters, of which each canary has one
to itself; "loss" is black box: canaries are rows of noise with labels, and are sought by their loss.
"""
PUBLISHED = """## Beside published figures

For DP-SGD on MNIST at epsilon 10, Yoon, Jeung and No (arXiv 2412.01756) report 4.91 from the final model (their second
version; 4.39 for canaries as others make them) and 6.68 white box (their first version), each from many trained models
that differ in one row, with the trade-off read as a Gaussian's. The figure to hold beside theirs is the last of our
bounds, *apart, if Gaussian*, and of it the line with all rows in every step. Ours differ in three ways: one run, in
which the many are canaries; bounds that hold all at once, at 95 %; and canaries with a parameter each, which is more
than a row of the data can do and what the definition has to withstand. By their loss alone our canaries, rows of noise
that nobody crafted, are not found. Where batches are samples the trade-off is no Gaussian's: at one and the same
epsilon, which is a matter of the far tail, guesses are wrong much more often.
"""


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines, halved = list(head), list(head)
    for name in CASES:
        sights = ("releases", "model", "loss") if name == next(iter(CASES)) else ("releases", "model")
        for see in sights:
            started = time.perf_counter()
            lines.append(row(name, audited(name, see)))
            print(lines[-1], f"{time.perf_counter() - started:.1f} s", flush=True)
        with noise_times(1 / 2):
            halved.append(row(name, audited(name, "releases")))
        print(halved[-1], flush=True)
    parts = [ABOUT, "## As it is\n", *lines, "\n## With half the noise, planted\n", *halved, f"\n{PUBLISHED}"]
    RESULTS.write_text("\n".join(parts))
    print(RESULTS)


if __name__ == "__main__":
    main()
