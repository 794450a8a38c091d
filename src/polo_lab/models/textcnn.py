"""TextCNN (Kim 2014): convolutions over words, the strongest answer of each, one linear layer."""

import torch
from torch import nn
from torch.nn import functional

from polo.evidence.rules import Normal

_SPREAD = 0.1
_DROPPED = 0.5


class TextCNN(nn.Module):
    """Convolutions over three, four and five words; token 0 is padding."""

    def __init__(
        self, classes: int = 4, vocabulary: int = 30_000, width: int = 300, filters: int = 100,
        spans: tuple[int, ...] = (3, 4, 5),
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        nn.init.normal_(self.words.weight, std=_SPREAD)
        with torch.no_grad():
            self.words.weight[0] = 0
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, span) for span in spans)
        self.head = nn.Linear(filters * len(spans), classes)

    def start_rules(self) -> dict[str, Normal]:
        """How the table of words begins."""
        return {"words.weight": Normal(_SPREAD, blank=0)}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Class scores of texts."""
        x = self.words(ids).transpose(1, 2)
        found = [functional.relu(layer(x)).amax(2) for layer in self.convolutions]
        kept = functional.dropout(torch.cat(found, 1), _DROPPED, self.training)
        scores: torch.Tensor = self.head(kept)
        return scores
