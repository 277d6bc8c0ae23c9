"""What a server has of its federation's data: how rows become inputs, and rows of its own to measure on, if any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.data import Loaded, load
from sordino.data.columns import TABLES
from sordino.data.inputs import Inputs
from sordino.data.reading import measurable, schema_for
from sordino.data.schema import Schema
from sordino.data.table import Table
from sordino.named import DATA_SETS


def known(data: str, classes: int | None = None) -> Loaded:
    """From a named set, whose test part is measured on; from rows of the server's own, all of them held out; or from a
    schema alone, without a row. Nothing is trained on here: of training rows there is one, and it is made up."""
    path = Path(data).expanduser()
    if data not in DATA_SETS and path.suffix.lower() == ".toml":
        return _loaded(path.name.split(".")[0], Table(Schema.read(path)), None)
    if data not in DATA_SETS and path.suffix.lower() in TABLES:
        table = Table(schema_for(path, None, None, None))
        return _loaded(path.stem, table, measurable(table.examples(path)))
    loaded = load(data, classes=classes)
    if loaded.inputs is None:
        raise ValueError(f"{data} cannot be told to nodes: give tables, arrays or images")
    return _loaded(loaded.name, loaded.inputs, loaded.train if loaded.test is None else loaded.test)


def _loaded(name: str, inputs: Inputs, test: Any) -> Loaded:
    target = inputs.target
    return Loaded(
        name,
        made_up_rows(inputs),
        test,
        target.outputs,
        inputs.shape,
        target.task,
        inputs.public,
        inputs=inputs,
    )


def made_up_rows(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """One row of the right shape."""
    target = torch.zeros(1, dtype=torch.int64 if inputs.target.labels else torch.float32)
    return torch.zeros(1, *inputs.shape), target
