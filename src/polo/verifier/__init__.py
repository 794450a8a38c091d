"""Verifying proofs: policy, verdict, report."""

from polo.verifier.policy import Policy
from polo.verifier.verdict import Check, Outcome, Status, Verdict
from polo.verifier.verification import verify

__all__ = ["Check", "Outcome", "Policy", "Status", "Verdict", "verify"]
