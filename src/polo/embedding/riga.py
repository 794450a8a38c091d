"""Pressing RIGA marks: the gradient through the frozen extractor, and the finishing step.

For a group with layers X₁ and X₂ (see `polo.watermark.riga`), bits b and weights w the loss is the
binary cross-entropy of sigmoid(c · X₂ leaky(X₁w)) against b. The factor c gives random weights
logits as large as EDNN's, so that one strength means about the same for both. With D the slopes of
the leaky step, the gradient is c · X₁ᵀ D X₂ᵀ (sigmoid(…) − b). A discriminator keeps the marked
blocks inconspicuous, but not where terms ask for replay (`polo.embedding.discriminator`).
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from polo.embedding import products
from polo.embedding.discriminator import EVERY, Discriminator
from polo.embedding.finishing import smallest_edit
from polo.embedding.linear import weight_of
from polo.protocol.carrier import Carrier
from polo.protocol.detection import MILLION
from polo.protocol.records import Terms
from polo.watermark import riga
from polo.watermark.mark import Mark

SLOPE = 2.0**-riga.SHIFT

_VARIANCE = 0.386
"""Variance of a hidden unit after the leaky step, where it was 1 before."""

_ROUNDS = 12
_DAMPING = 0.5


class RigaPress:
    """Presses one RIGA mark; see `polo.embedding.presses.Press` and `Watching`."""

    every = EVERY

    def __init__(self, mark: Mark, terms: Terms, device: torch.device) -> None:
        self._mark = mark
        scale = (_VARIANCE * riga.hidden_units(mark)) ** -0.5
        hidden, out = (torch.from_numpy(layer.copy()) for layer in riga.layers(mark))
        self._hidden = hidden.to(device=device, dtype=torch.float32)
        self._out = out.to(device=device, dtype=torch.float32) * scale
        self._bits = torch.from_numpy(mark.bits).to(device=device, dtype=torch.float32)
        self._budget = terms.finish.budget / MILLION
        self._margin = terms.finish.margin / MILLION
        self._weight = weight_of(mark)
        # A discriminator learns all through a shard, and replay starts anywhere within one.
        self._replayed = any(evidence.level == "replay" for evidence in terms.evidence)
        self._discriminator: Discriminator | None = None

    @property
    def graphed(self) -> bool:
        """Whether pressing may be recorded."""
        return products.fits(self._hidden)

    def reference(self, carrier: Carrier) -> tuple[int, ...]:
        """Unmarked blocks that the discriminator compares with; none where it is off."""
        if self._replayed:
            return ()
        found = Discriminator(self._mark, carrier, self._bits.device)
        self._discriminator = found if found.reference else None
        return found.reference

    def watch(self, values: torch.Tensor, unmarked: torch.Tensor) -> None:
        """Let the discriminator learn from marked and unmarked weights."""
        if self._discriminator:
            self._discriminator.learn(values, unmarked)

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """λl of the mark at these weights, the discriminator's part included."""
        hidden = products.times(self._hidden, values.reshape(self._mark.groups, -1))
        logits = self._logits(hidden)
        loss = binary_cross_entropy_with_logits(logits, self._bits.to(logits), reduction="sum")
        if self._discriminator:
            loss = loss + self._discriminator.loss(values)
        return loss * self._weight

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights."""
        z = products.times(self._hidden, values.reshape(len(self._hidden), -1))
        wrong = torch.sigmoid(self._logits(z)) - self._bits
        back = products.back(self._out, wrong)
        slopes = torch.ops.aten.leaky_relu_backward(back, z, SLOPE, False)
        gradient = products.back(self._hidden, slopes).reshape(values.shape)
        if self._discriminator:
            gradient += self._discriminator.gradient(values)
        return gradient.mul_(self._weight)

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights with wrong bits corrected as far as the budget goes.

        The extractor is linear wherever no hidden unit changes its sign, but a useful edit turns
        many. So its slopes are taken as the secants from the weights as they are to the last
        guess, the smallest edit for these slopes makes the next guess, and a few damped rounds
        settle. An edit is always measured from the weights as they are, which keeps it within
        the budget. Of all guesses each group takes the one with most right bits that loses none.
        """
        # In double precision on the CPU: small, and the same on every device.
        before = values.double().cpu().reshape(self._mark.groups, -1)
        kept, right = before.clone(), self._right(before)
        if not self._budget or bool(right.all()):
            return kept.reshape(values.shape)
        guess, most = before, right.sum(1)
        layers = self._hidden.double().cpu(), self._out.double().cpu()
        for _ in range(_ROUNDS):
            guess = torch.lerp(guess, before + self._edit(before, guess, *layers), _DAMPING)
            found = self._right(guess)
            better = (found | ~right).all(1) & (found.sum(1) > most)
            kept[better] = guess[better]
            most = torch.where(better, found.sum(1), most)
            if bool((most == self._mark.group_bits).all()):
                break
        return kept.reshape(values.shape)

    def _edit(
        self, before: torch.Tensor, guess: torch.Tensor, hidden: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """The smallest edit of the weights, were the extractor linear from them to the guess."""
        z, moved = products.times(hidden, before), products.times(hidden, guess)
        far = (moved - z).abs() > 1e-9 * z.abs()
        rise = leaky_relu(moved, SLOPE) - leaky_relu(z, SLOPE)
        secant = torch.where(far, rise / (moved - z), torch.where(z >= 0, 1.0, SLOPE))
        signs = 2 * self._bits.double().cpu() - 1
        wanted = signs.unsqueeze(2) * torch.bmm(out * secant.unsqueeze(1), hidden)
        sums = signs * products.times(out, leaky_relu(z, SLOPE))
        norms = before.norm(dim=1, keepdim=True)
        return smallest_edit(wanted, sums, norms, margin=self._margin, budget=self._budget)

    def _right(self, weights: torch.Tensor) -> torch.Tensor:
        found = riga.Riga().matches(self._mark, weights.numpy(), range(self._mark.groups))
        return torch.from_numpy(found)

    def _logits(self, z: torch.Tensor) -> torch.Tensor:
        return products.times(self._out, leaky_relu(z, SLOPE))
