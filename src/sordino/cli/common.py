"""What the commands share: settings, budgets, models that fit, warnings in one line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from sordino.data import Loaded
    from sordino.privacy import Budget

# torch and the accountants load slowly: they are imported inside functions, so that --help is quick.


# Options that mean the same everywhere.
Classes = Annotated[int | None, typer.Option(help="Number of classes of an .npz, if it is public.")]
Secure = Annotated[
    bool, typer.Option("--secure", help="Refuse seeds: randomness from the operating system alone.")
]
Out = Annotated[Path | None, typer.Option(help="Where the run goes; default runs/DATA-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")]
KeepCheckpoint = Annotated[
    bool,
    typer.Option("--keep-checkpoint", help="Keep checkpoint/ (it holds the noise key: keep it secret)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]


def run_folder(out: Path | None, name: str) -> Path:
    """Where the run goes: as told, or a new folder named after data and time."""
    if out is not None:
        return out
    folder = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    tries = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(each for each in tries if not each.exists())


def initial_model(spec: str, loaded: Loaded, seed: int | None) -> nn.Module:
    """A model that fits the data, its weights drawn from the run's seed or from the system."""
    import torch

    from sordino.models import build_model
    from sordino.noise import Streams

    initial = Streams.from_entropy() if seed is None else Streams.from_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(initial.seed_for("initialisation", 0))
        network = build_model(spec, loaded.input_shape, loaded.classes)
    check_outputs(network, loaded, spec)
    return network


def budget_of(epsilon: float | None, delta: float | None, noise_multiplier: float | None) -> Budget | None:
    """The budget the options name; None if they name a noise multiplier, or nothing."""
    from sordino.privacy import Budget
    from sordino.privacy.budget import check_delta

    if epsilon is not None and noise_multiplier is not None:
        raise ValueError("give either --epsilon or --noise-multiplier, not both")
    if epsilon is not None:
        if delta is None:
            raise ValueError(
                "--epsilon needs a --delta: choose one well below 1 over the number of units, such as 1e-5"
            )
        return Budget(epsilon, delta)
    if noise_multiplier is not None and delta is not None:
        check_delta(delta)
    return None


def loss_for(loaded: Loaded) -> Callable[[Tensor, Tensor], Tensor]:
    """One value for each example."""
    import torch

    from sordino.models import next_word_loss

    return next_word_loss if loaded.task == "next-word" else torch.nn.CrossEntropyLoss(reduction="none")


def parsed_settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set takes NAME=VALUE, not {pair!r}")
        if name in settings:
            raise ValueError(f"--set {name} was given twice: give it once")
        try:
            word = value.lower()
            settings[name] = (
                None if word == "none" else json.loads(word if word in ("true", "false") else value)
            )
        except ValueError:
            settings[name] = value
    return settings


def check_outputs(network: nn.Module, loaded: Loaded, spec: str) -> None:
    """The model runs on rows of this shape and gives a score for each class; made-up rows tell."""
    import torch

    from sordino.data import as_examples

    inputs, _ = as_examples(loaded.train).template(5)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = network(inputs)
    except Exception as error:
        raise ValueError(
            f"model {spec!r} cannot run on inputs of shape {loaded.input_shape}: {type(error).__name__}: {error}"
        ) from error
    if loaded.task == "next-word":
        return
    if not isinstance(output, torch.Tensor) or output.dim() != 2 or output.shape[1] < loaded.classes:
        got = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"model {spec!r} must give {loaded.classes} scores for each of 5 rows, shape (5, {loaded.classes}), "
            f"but gave {got}"
        )


@contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """What stops a run from outside gets one line, which says how to go on."""
    from sordino.runs import CannotWrite, RunDirectory

    again = f"the same command with --out {folder} --resume"
    try:
        yield
    except KeyboardInterrupt:
        raise ValueError(f"interrupted; to go on from the last checkpoint, give {again}") from None
    except CannotWrite as error:
        begun = RunDirectory(folder).is_of_a_run
        raise ValueError(f"{error} ({again})" if begun else str(error)) from error


@contextmanager
def told_to_end_is_interrupted() -> Iterator[None]:
    """SIGTERM, by which machines and schedulers end a process, does what Ctrl-C does. For commands: a library has no
    business with the handlers of the program it is part of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def interrupt(*_: Any) -> None:
        if os.getpid() != owner:  # a fork, which is to end at once
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def drawn_at_last(
    folder: Path, draw: Callable[[dict[str, Any], list[dict[str, Any]]], None], as_json: bool
) -> bool:
    """Whether the run in ``folder`` was complete but for its figure, which is drawn now."""
    from sordino.runs import RunDirectory, claimed, to_json

    directory = RunDirectory(folder)
    if not directory.is_complete or (folder / "report.png").exists():
        return False
    with claimed(directory, resume=True), interruptible(folder):
        summary = directory.summary or {}
        draw(summary, directory.history())
    done = f"the run in {folder} was complete; its report.png was missing and is drawn"
    print(to_json({**summary, "run": str(folder)}) if as_json else done)
    return True


def draw_report(summary: dict[str, Any], history: list[dict[str, Any]], path: Path) -> None:
    from sordino.report import drawn
    from sordino.runs import replace_file

    replace_file(path, drawn(summary, history))


def draw_federated_report(summary: dict[str, Any], history: list[dict[str, Any]], folder: Path) -> None:
    from sordino.report import drawn
    from sordino.runs import replace_file

    about = folder / "clients.json"
    clients = json.loads(about.read_text()) if about.exists() else None
    replace_file(folder / "report.png", drawn(summary, history, clients))


def save_figure(figure: Figure, path: Path) -> None:
    """Whole or not at all: half a figure on a full disk would pass for one that is there."""
    import io

    from sordino.runs import replace_file

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    replace_file(path, drawn.getvalue())


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"sordino: warning: {' '.join(str(message).split())}", file=sys.stderr)
