"""News as text: sentence embeddings of a public model against hashed words, a private linear model on both.

    SORDINO_DATA=... python benchmarks/own_text.py --sentences NAME_OR_PATH [--rows 10000] [--epsilons 1 3]

AG News as it is written, each row its title and description, read as a table with one column of texts. Both ways train
the default method with nothing set. Embeddings are computed once, of each text by itself. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import sordino as sd
from sordino.data import load
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.data.table import Table
from sordino.features.featured import with_embedding
from sordino.models import build_model

LABELS = ("world", "sports", "business", "technology")
DELTA = 1e-5


def columns(part: Any, rows: int | None) -> dict[str, list[str]]:
    """The first rows of a part, as a table."""
    texts, targets = part
    chosen = slice(None, rows)
    return {"text": texts[chosen], "topic": [LABELS[number] for number in targets[chosen].tolist()]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", required=True, help="a sentence-transformers model, by name or path")
    parser.add_argument("--rows", type=int, help="to train on; by default all")
    parser.add_argument("--test-rows", type=int, help="by default all")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    asked = parser.parse_args()
    news = load("ag-news", texts=True)
    words = Schema(TargetColumn("topic", labels=LABELS), (Column("text", "text"),))
    sentences = with_embedding(words, f"sentence-transformers:{asked.sentences}")
    print(
        "| texts as | rows | epsilon | accuracy | reading, minutes | training, minutes |\n|---|---|---|---|---|---|"
    )
    for called, schema in (("hashed words", words), ("sentence embeddings", sentences)):
        begun = time.monotonic()
        table = Table(schema)
        train = table.examples(columns(news.train, asked.rows), progress=True)
        test = table.examples(columns(news.test, asked.test_rows), progress=True)
        reading = (time.monotonic() - begun) / 60
        for epsilon in asked.epsilons:
            begun = time.monotonic()
            torch.manual_seed(0)
            model = build_model("linear", table.shape, len(LABELS))
            budget = sd.Budget(epsilon=epsilon, delta=DELTA)
            run = sd.train(model, sd.classification(), train, budget=budget, test=test, progress=False)
            minutes = (time.monotonic() - begun) / 60
            accuracy = run.metrics["test_accuracy"]
            print(
                f"| {called} | {len(train):,} | {epsilon:g} | {accuracy:.2%} | {reading:.1f} | {minutes:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
