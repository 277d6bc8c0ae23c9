"""Private fine-tuning of adapters on a frozen model: only the adapters are clipped, noised and moved.

python examples/lora.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sordino as sd
from sordino.privacy import show_epsilon


class LowRank(nn.Module):
    """A frozen linear layer plus a trainable update of low rank (Hu et al., 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(base.in_features, rank) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(rank, base.out_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down @ self.up


def adapt(model: nn.Sequential, rank: int = 4) -> nn.Sequential:
    """The model with its linear layers adapted and everything else frozen."""
    model.requires_grad_(False)
    return nn.Sequential(*(LowRank(m, rank) if isinstance(m, nn.Linear) else m for m in model))


def main() -> None:
    torch.manual_seed(0)
    pretrained = nn.Sequential(
        nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    model = adapt(pretrained)
    inputs = torch.randn(4000, 20)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    start = [p.clone() for p in model.parameters()]
    run = sd.train(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        (inputs[:3000], targets[:3000]),
        method=sd.dp_adam(learning_rate=5e-3),
        budget=sd.Budget(epsilon=8, delta=1e-5),
        epochs=30,
        batch_size=300,
        test=(inputs[3000:], targets[3000:]),
        seed=0,
    )
    for before, after in zip(start, model.parameters(), strict=True):
        assert torch.equal(before, after) != after.requires_grad  # adapters moved, and nothing else
    trained, total = run.summary["parameters"], sum(p.numel() for p in model.parameters())
    print(
        f"trained {trained:,} of {total:,} parameters: accuracy {run.metrics['test_accuracy']:.1%}, "
        f"epsilon {show_epsilon(run.epsilon)}"
    )


if __name__ == "__main__":
    main()
