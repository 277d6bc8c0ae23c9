"""Federated averaging in Flower's simulation, for federated_round.py; runs in an environment with flwr and ray.

`--threads` is what a client may use: as many clients run at once as the processors have room for.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before their imports

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import (
    CLIENTS,
    EXAMPLES,
    PER_ROUND,
    Data,
    Stopwatch,
    model_and_data,
    new_model,
    options,
    report,
    train_client,
)


class TimedFedAvg(FedAvg):
    """Ends a round when its clients were averaged. Of the evaluation that follows, nothing is left to do."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(
            fraction_train=PER_ROUND / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=PER_ROUND,  # of the first round, which starts before all nodes are known
            min_available_nodes=CLIENTS,
        )
        self.stopwatch = stopwatch

    def aggregate_train(self, server_round: int, replies: list[Message]) -> tuple[ArrayRecord, MetricRecord]:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != PER_ROUND:
            raise RuntimeError(f"{len(replies)} replies, {len(failed)} of them errors: {failed[:1]}")
        result = super().aggregate_train(server_round, replies)
        self.stopwatch()
        found: tuple[ArrayRecord, MetricRecord] = result
        return found


def client_app(case: str, folder: str, epochs: int, threads: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        model, data = model_and_data(case, folder)  # opened once in each worker process
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, *data.client(int(context.node_config["partition-id"])), epochs)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": EXAMPLES}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def main() -> None:
    chosen = options()
    os.environ.setdefault("FLWR_HOME", str(Path(chosen.data) / "flower"))
    torch.set_num_threads(chosen.threads)
    model, stopwatch, server = new_model(chosen.case), Stopwatch(), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        result = TimedFedAvg(stopwatch).start(grid, ArrayRecord(model.state_dict()), num_rounds=chosen.rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        client_app(chosen.case, chosen.data, chosen.epochs, chosen.threads),
        CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": chosen.threads, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "log_to_driver": False},
        },
    )
    versions = f"{version('flwr')} (ray {version('ray')})"
    report(chosen, stopwatch, model, Data.of(chosen.data), versions)


if __name__ == "__main__":
    main()
