"""Pressing EDNN marks into the mean of four blocks.

The loss is EDNN's at the mean of the blocks, so every block of a group is pulled alike, by a
quarter of the mean's gradient. The finishing step is the smallest edit of the weights themselves.
"""

import torch

from polo.embedding.ednn import EdnnPress
from polo.protocol.records import Terms
from polo.watermark.ednn_mean import AVERAGED
from polo.watermark.mark import Mark


class EdnnMeanPress(EdnnPress):
    """Presses one mark of the scheme `ednn-mean`; see `polo.embedding.presses.Press`."""

    def __init__(self, mark: Mark, terms: Terms, device: torch.device) -> None:
        super().__init__(mark, terms, device, columns=mark.group_weights // AVERAGED)
        self._block = mark.scheme.block

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """X times the mean of the blocks, by group and bit."""
        return super().sums(values.reshape(-1, AVERAGED, self._block).mean(dim=1))

    def back(self, slopes: torch.Tensor, weight: float) -> torch.Tensor:
        """The slopes' pull on every block, as groups × weights."""
        pulls = super().back(slopes, weight / AVERAGED).reshape(-1, 1, self._block)
        return pulls.expand(-1, AVERAGED, -1).reshape(len(slopes), -1)

    def wanted(self) -> torch.Tensor:
        """The rows that read a sum of blocks, over all weights of them."""
        rows = super().wanted()
        blocks = rows.reshape(*rows.shape[:2], -1, 1, self._block)
        return blocks.expand(-1, -1, -1, AVERAGED, -1).reshape(*rows.shape[:2], -1)
