"""Challenges: what the registry asks to see, drawn by its own randomness after it is in the log.

*Streaming*: a commitment's receipt waits until the whole checkpoint that was drawn has been shown
and checked. *After the close*: checkpoints and steps of the closed chain are drawn, and the prover
shows them. An unanswered challenge is a failed one, and the chain fails with it.
"""
