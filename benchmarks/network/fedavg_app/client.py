"""A client as Flower's tutorial writes it: load the rows, train, send the weights."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedavg_app.net import net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = np.load(context.node_config["data"])
    x, y = torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for batch in torch.randperm(len(y)).split(45):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
