"""Verifications: a closed chain checked by `polo.verify`, and the verdict signed by the registry.

The proof is put together from what the registry holds, or unpacked from a bundle that the prover
uploaded. It is hostile, and the task needs torch: so it is verified in a process of its own, with
limits on memory and time. A verification that was interrupted starts over.
"""
