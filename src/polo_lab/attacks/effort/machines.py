"""What a forger says about its machine."""

from polo.evidence.replay import platform


def foreign(device: str) -> str:
    """A machine that no verifier has; it is like this one otherwise.

    Where machines differ, states are compared within a tolerance.

    Args:
        device: Where it trains, and the verifier is to run it again.
    """
    return platform.text_of({**platform.describe(device), "name": "a processor of my own"})
