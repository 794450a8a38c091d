"""The object a trainer holds."""

from polo.prover.monitor import EmbeddingWarning
from polo.prover.prover import Progress, Proof, Prover

__all__ = ["EmbeddingWarning", "Progress", "Proof", "Prover"]
