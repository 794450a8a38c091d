"""All experiments by name. Modules are imported when one of theirs is asked for."""

import importlib
from pathlib import Path

from polo.errors import PoloError
from polo_lab.experiments import lines
from polo_lab.experiments.experiment import Experiment
from polo_lab.experiments.lines import Recording

_MODULES = {
    "comparison": "paper.comparison",
    "fidelity": "paper.fidelity",
    "timing": "paper.timing",
    "ofa-wma": "paper.forgery",
    "attack-curves": "paper.forgery",
    "takeover": "paper.takeover",
    "learning-rate": "paper.sweeps",
    "eta-g": "paper.sweeps",
    "eta-ver": "paper.eta_ver",
    "llm": "llm",
    "cost": "paper.cost",
    "effort": "effort",
    "effort-tolerance": "effort",
    "effort-resnet18": "effort",
    "escapes": "escapes",
    "exactness": "exactness",
    "schemes": "schemes",
    "schemes-resnet18": "schemes",
}
NAMES = tuple(_MODULES)
"""Every experiment."""


def find(name: str) -> Experiment:
    """An experiment by name."""
    if name not in _MODULES:
        raise PoloError(f"there is no experiment {name}", advice=f"one of {', '.join(NAMES)}")
    module = importlib.import_module(f"polo_lab.experiments.{_MODULES[name]}")
    found: Experiment = next(one for one in module.EXPERIMENTS if one.name == name)
    return found


def recorded(name: str, folder: Path) -> Recording:
    """What a folder has of an experiment; lines with settings of no run of it are left out."""
    own = find(find(name).lines)
    return lines.read(lines.path_of(own.name, folder), own.names_of(folder))
