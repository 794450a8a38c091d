"""Tests that every scheme must pass, for those who write one.

A scheme of your own is two classes, one that reads (`polo.watermark.schemes.Scheme`) and one that
presses (`polo.embedding.presses.Press`), offered by the entry points `polo.schemes` and
`polo.presses` under one name. Then, in a file that pytest collects:

    from polo.testing import SchemeConformance, TrainingConformance

    class TestMine(SchemeConformance):
        scheme = "mine"

    class TestTrainingWithMine(TrainingConformance):
        scheme = "mine"

Nothing here imports pytest.
"""

from polo.testing.scheme import SchemeConformance
from polo.testing.subject import Digits, Subject
from polo.testing.training import TrainingConformance

__all__ = ["Digits", "SchemeConformance", "Subject", "TrainingConformance"]
