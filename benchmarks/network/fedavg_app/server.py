"""Flower's FedAvg, with the time at the end of each round."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedavg_app.net import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes, out = int(context.run_config["nodes"]), str(context.run_config["out"])

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            assert len(replies) == nodes, len(replies)
            result = super().aggregate_train(server_round, replies)
            with open(out, "a") as file:
                file.write(f"{time.time()}\n")
            return result

    strategy = Timed(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes
    )
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=int(context.run_config["rounds"]))
