"""Tasks to measure on, one file each, all with real data.

They are registered in group `polo.tasks` under names that begin with `lab-`.
"""

from polo_lab.tasks.cancer import Cancer
from polo_lab.tasks.cifar import Cifar
from polo_lab.tasks.digits import DigitsConv, DigitsMLP
from polo_lab.tasks.text import Letters

__all__ = ["Cancer", "Cifar", "DigitsConv", "DigitsMLP", "Letters"]
