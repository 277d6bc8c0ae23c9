"""Federated averaging in pfl's simulated backend, for federated_round.py; runs in an environment with pfl.

Users keep their batches between rounds, which is what pfl's data sets do fastest; they do not shuffle. The first round
evaluates, as pfl has it, and is not timed.
"""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import (
    BATCH,
    CLIENTS,
    EXAMPLES,
    PER_ROUND,
    RATE,
    SEED,
    Data,
    Stopwatch,
    new_model,
    options,
    report,
)


class Learner(torch.nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        total = torch.nn.functional.cross_entropy(self.model(inputs), targets, reduction="sum")
        return {"loss": Weighted(total.item(), len(targets))}


class EndOfRound(TrainingProcessCallback):
    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.stopwatch()
        return False, Metrics()


def main() -> None:
    chosen = options()
    torch.set_num_threads(chosen.threads)
    np.random.seed(SEED % 2**32)
    data, stopwatch = Data.of(chosen.data), Stopwatch()
    users = {k: PyTorchTensorDataset(data.client(k), user_id=str(k)) for k in range(CLIENTS)}
    federation = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    learner = Learner(new_model(chosen.case))
    model = PyTorchModel(
        learner,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=chosen.rounds,
            evaluation_frequency=chosen.rounds + 1,
            train_cohort_size=PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=federation, val_data=federation),
        model,
        NNTrainHyperParams(local_num_epochs=chosen.epochs, local_learning_rate=RATE, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=EXAMPLES),
        callbacks=[EndOfRound(stopwatch)],
        send_metrics_to_platform=False,
    )
    report(chosen, stopwatch, learner.model, data, version("pfl"))


if __name__ == "__main__":
    main()
