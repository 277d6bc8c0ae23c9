"""The lines of a history, shown while a run goes on in what people have open already: TensorBoard, MLflow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sordino.runs.process import HistoryLogger

# What is computed from noisy releases and public numbers. Whatever else a line may have is covered by nothing.
_RELEASED = ("epoch", "epsilon", "rate", "threshold", "error", "tolerance", "cloud_norm")
_COUNTED = ("step", "round")  # which a logger has as its own axis
NOT_COVERED = "not_covered"


def logged_values(line: Mapping[str, Any], promised: bool) -> Iterator[tuple[str, float]]:
    """The numbers of a line, under names that say which of them no guarantee covers.

    >>> list(logged_values({"step": 9, "rate": 0.5, "test_accuracy": 0.9, "covered": False}, promised=True))
    [('rate', 0.5), ('not_covered/test_accuracy', 0.9)]
    """
    paid = promised and line.get("covered") is True
    for name, value in line.items():
        if name in _COUNTED or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            covered = promised and (name in _RELEASED or paid)
            yield (name if covered else f"{NOT_COVERED}/{name}"), float(value)


def _promises(facts: Mapping[str, Any]) -> bool:
    """Whether anything that such a run releases is covered at all."""
    noisy = facts.get("noise_multiplier")
    return bool(noisy) and not facts.get("seeded") and not facts.get("caveat")


class TensorBoard(HistoryLogger):
    """A callback that writes the lines of the history as scalars for TensorBoard.

    Guarantee: it writes what history.jsonl has and nothing else. What no guarantee covers (scores on held-out rows, a
    training loss shown on request, and everything of a run that promises nothing) stands under ``not_covered/``.

    Args:
        folder: For the event files; one folder for each run is what TensorBoard expects.

    >>> import tempfile, torch, sordino as sd
    >>> rows, folder = (torch.ones(8, 2), torch.zeros(8)), tempfile.mkdtemp()
    >>> loss = lambda output, y: (output[:, 0] - y) ** 2
    >>> board = sd.TensorBoard(folder)
    >>> run = sd.train(torch.nn.Linear(2, 1), loss, rows, method=sd.sgd(), epochs=1, callbacks=[board])
    >>> [path.name[:18] for path in Path(folder).iterdir()]
    ['events.out.tfevent']
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise ValueError("TensorBoard is not installed: pip install 'sordino[tensorboard]'") from None
        self._writer: Any = None
        self._promised = False

    def begin(self, facts: Mapping[str, Any], done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._promised = _promises(facts)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # What an interrupted run wrote after its checkpoint is written again, and shown once.
            self._writer = SummaryWriter(str(self.folder), purge_step=done + 1 if done else None)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueError(
                f"TensorBoard's files cannot be written to {self.folder} ({reason}): choose another folder"
            ) from None

    def wrote(self, step: int, line: Mapping[str, Any]) -> None:
        for name, value in logged_values(line, self._promised):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow(HistoryLogger):
    """A callback that writes the lines of the history as metrics of a run of MLflow.

    Guarantee: it writes what history.jsonl has and nothing else: no model, no settings, no files. What no guarantee
    covers stands under ``not_covered/``. MLflow's telemetry is off unless you turned it on
    (``MLFLOW_DISABLE_TELEMETRY=false``).

    Args:
        experiment: In which the run stands.
        uri: Of the server, or a folder; by default what ``MLFLOW_TRACKING_URI`` says, else the folder ``mlruns``. A
            database (``sqlite:``) needs the whole of MLflow, which the extra does not install.

    >>> import tempfile, torch, sordino as sd
    >>> rows, folder = (torch.ones(8, 2), torch.zeros(8)), tempfile.mkdtemp()
    >>> loss = lambda output, y: (output[:, 0] - y) ** 2
    >>> log = sd.MLflow("trial", uri=folder)
    >>> run = sd.train(torch.nn.Linear(2, 1), loss, rows, method=sd.sgd(), epochs=1, callbacks=[log])
    >>> log.run_id is not None
    True
    """

    def __init__(self, experiment: str = "sordino", uri: str | Path | None = None) -> None:
        # Before it is loaded: whoever did not ask for it does not send anything.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self.experiment = experiment
        self.uri = str(uri or os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute())
        if "://" not in self.uri and not self.uri.startswith(("file:", "databricks")):
            self.uri = Path(self.uri).absolute().as_uri()
        if self.uri.startswith("file:"):
            # MLflow 3 has folders in maintenance, and asks whoever wants one to say so: giving one is saying so.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            from mlflow import MlflowClient  # noqa: F401
        except ImportError:
            raise ValueError("MLflow is not installed: pip install 'sordino[mlflow]'") from None
        self.run_id: str | None = None
        self._client: Any = None
        self._promised = False

    def begin(self, facts: Mapping[str, Any], done: int) -> None:
        from mlflow import MlflowClient

        self._promised, self.run_id = _promises(facts), None
        try:
            self._client = MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
            where = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            self.run_id = self._client.create_run(where).info.run_id
        except Exception as error:
            raise ValueError(
                f"MLflow at {self.uri} takes no run ({type(error).__name__}): start its server, or give a folder"
            ) from None

    def wrote(self, step: int, line: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = [Metric(name, value, now, step) for name, value in logged_values(line, self._promised)]
        self._client.log_batch(self.run_id, metrics=values)

    def close(self, finished: bool) -> None:
        if self.run_id is not None:
            self._client.set_terminated(self.run_id, "FINISHED" if finished else "FAILED")


def mlflow_named(text: str) -> MLflow:
    """From one word of the command line: a URI or a folder, or else the name of an experiment.

    >>> mlflow_named("digits").experiment, mlflow_named("./here").experiment
    ('digits', 'sordino')
    """
    place = "://" in text or text.startswith(("file:", "databricks")) or "/" in text or Path(text).is_dir()
    return MLflow(uri=text) if place else MLflow(text)
