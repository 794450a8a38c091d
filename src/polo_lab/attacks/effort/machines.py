"""What a forger says about its machine."""

from polo.evidence.replay import platform


def foreign() -> str:
    """A machine that no verifier has; it is like this one otherwise.

    Where machines differ, states are compared within a tolerance.
    """
    return platform.text_of({**platform.describe("cpu"), "name": "a processor of my own"})
