"""Verifying proofs: policy, verdict, report."""

from polo.checks import Check, Status
from polo.verifier.policy import Policy
from polo.verifier.verdict import Outcome, Verdict
from polo.verifier.verification import verify

__all__ = ["Check", "Outcome", "Policy", "Status", "Verdict", "verify"]
