"""The object a trainer holds."""

from polo.prover.monitor import EmbeddingWarning
from polo.prover.prover import Prover
from polo.prover.receiving import ReceiptWarning
from polo.prover.results import Progress, Proof

__all__ = ["EmbeddingWarning", "Progress", "Proof", "Prover", "ReceiptWarning"]
