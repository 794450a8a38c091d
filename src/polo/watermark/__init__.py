"""Reading marks: derive, extract, count. numpy only; pressing them in is `polo.embedding`."""

from polo.watermark.capacity import Capacity, capacity
from polo.watermark.mark import Mark, carrier_of, derive
from polo.watermark.reading import OpenedCheckpoint, read, values_of

__all__ = [
    "Capacity",
    "Mark",
    "OpenedCheckpoint",
    "capacity",
    "carrier_of",
    "derive",
    "read",
    "values_of",
]
