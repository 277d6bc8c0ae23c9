"""Features of the user's own: any callable, or module, that takes a batch and gives a vector for each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sordino.features.frozen import Frozen
from sordino.imported import imported, one_line


@dataclass(frozen=True)
class Own(Frozen):
    """MODULE:CALLABLE, called with a batch [B, ...], or with a list of B texts; it gives [B, d]."""

    spec: str
    function: Any = field(compare=False)
    takes: ClassVar[str] = "rows"

    @property
    def name(self) -> str:
        return self.spec

    def shape(self, row: tuple[int, ...]) -> tuple[int, ...]:
        made_up = torch.rand((5, *row), generator=torch.Generator().manual_seed(0))
        try:
            return tuple(self(made_up).shape[1:])
        except ValueError:
            raise
        except Exception as error:  # on made-up rows, so that what it says quotes nobody
            raise ValueError(
                f"features {self.spec!r} cannot be computed of rows of shape {row}: {one_line(error)}"
            ) from None

    def __call__(self, rows: Any) -> Tensor:
        with torch.no_grad():
            found = self.function(rows)
        if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != len(rows):
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"features {self.spec!r} must be one row for each of {len(rows)} rows, shape ({len(rows)}, d), but "
                f"were {got}: fix what {self.spec.rpartition(':')[2]} returns"
            )
        return found.detach().to("cpu", torch.float32)


def own(spec: str) -> Own:
    """What MODULE:CALLABLE names: a function of a batch, a module, or a class of modules that needs no arguments."""
    with imported(spec, "features") as found:
        if isinstance(found, type):
            try:
                found = found()
            except Exception as error:  # user code
                raise ValueError(f"features {spec!r}: it cannot be made: {one_line(error)}") from error
        if not callable(found):
            raise ValueError(
                f"features {spec!r}: it is a {type(found).__name__}: name a function or a module"
            )
    if isinstance(found, nn.Module):
        found.eval().requires_grad_(False)  # frozen: neither statistics nor weights move
    return Own(spec, found)
