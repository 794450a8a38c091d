"""How much one caller may ask, in a memory that does not grow.

Each registered key and each address has a bucket that refills by its rate and holds ten seconds'
worth. Requests that are signed cost their key; all others, and those whose signature or token does
not hold, cost the address they came from. So nobody empties another's bucket, and made-up keys
gain nothing.
"""

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from polo.registry.problems import Problem

BURST_SECONDS = 10
MOST_BUCKETS = 50_000
FAILURE_COST = 5
"""Requests that one with a wrong signature or token counts for."""


class Buckets:
    """Token buckets by name, the least used forgotten first.

    Args:
        rate: Requests a second.
        most: Buckets to remember.
        clock: Seconds, from anywhere, never backwards.
    """

    def __init__(
        self, rate: int, *, most: int = MOST_BUCKETS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self.most = most
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, cost: float = 1) -> None:
        """Take from a bucket, or say how long to wait.

        Raises:
            Problem: 429, if there is not enough in it.
        """
        with self._lock:
            left = self._level(name) - cost
            if left < 0:
                self._refuse(left)
            self._put(name, left)

    def punish(self, name: str, cost: float = FAILURE_COST) -> None:
        """Take even what is not there."""
        with self._lock:
            self._put(name, max(self._level(name) - cost, -self.rate * BURST_SECONDS))

    def check(self, name: str) -> None:
        """Refuse whoever's bucket is empty, and take nothing."""
        with self._lock:
            left = self._level(name) - 1
            if left < 0:
                self._refuse(left)

    def __len__(self) -> int:
        return len(self._buckets)

    def _level(self, name: str) -> float:
        full = float(self.rate * BURST_SECONDS)
        level, since = self._buckets.get(name, (full, 0.0))
        return min(full, level + (self._clock() - since) * self.rate)

    def _put(self, name: str, level: float) -> None:
        self._buckets[name] = level, self._clock()
        self._buckets.move_to_end(name)
        while len(self._buckets) > self.most:
            self._buckets.popitem(last=False)

    def _refuse(self, left: float) -> None:
        wait = max(1, round(-left / self.rate + 0.5))
        raise Problem(
            429,
            "rate.exceeded",
            f"more than {self.rate} requests a second",
            advice=f"Wait {wait} s.",
            headers={"Retry-After": str(wait)},
        )


class Limits:
    """The buckets of one registry.

    Args:
        rate: Requests a second for each registered key, and for each token.
        guest_rate: Requests a second for each address.
    """

    def __init__(self, rate: int, guest_rate: int) -> None:
        self.keys = Buckets(rate)
        self.addresses = Buckets(guest_rate)


@functools.lru_cache(maxsize=4096)
def network(address: str) -> str:
    """What one household has: the address, or its /64 for IPv6.

    >>> network("2001:db8::1:2:3"), network("192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
