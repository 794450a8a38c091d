"""Vectors of level replay: data and openings of samples, order and seeds, recipes and rates."""

import hashlib
import hmac

import numpy as np
from vectors.kit import Json, fixed

from polo.evidence.replay.data import DataSource
from polo.evidence.replay.distinct import LEAST_DISTINCT, distinct_bound
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.samples import encode_opening, leaf, row_bytes
from polo.protocol.digest import u64

_COUNT = 7
_OPENED = ([0], [6], [2, 3], [0, 2, 5], list(range(_COUNT)))

_SHOWN = (
    (1000, 0, 1000), (1000, 500, 1000), (1000, 501, 1000), (1000, 500, 100_000),
    (1000, 601, 100_000), (1000, 602, 100_000), (20, 19, 100_000),
    (50_000, 25_508, 100_000), (50_000, 25_510, 100_000), (1, 0, 1), (1, 0, 2),
)  # fmt: skip
"""Samples shown, repeated, declared."""


def data_json() -> Json:
    """Samples with their leaves and root, openings of some, and the rule about repeated ones."""
    raw = fixed("polo vectors: samples", 64 * _COUNT)
    columns = {
        "label": np.frombuffer(raw[: 8 * _COUNT], "<i8"),
        "flag": np.frombuffer(raw[: 2 * _COUNT], "u1").reshape(-1, 2) % 2 == 1,
        "image": np.frombuffer(raw[8 * _COUNT : 32 * _COUNT], "<f4").reshape(-1, 2, 3),
    }
    secret = fixed("polo vectors: secret of the data", 32)
    source = DataSource(columns, secret)
    samples = []
    for index, row in enumerate(row_bytes(source.rows(range(_COUNT)))):
        salt = hmac.digest(secret, b"polo/sample-salt/1" + u64(index), "sha256")
        samples.append({"row": row.hex(), "salt": salt.hex(), "leaf": leaf(index, salt, row).hex()})
    openings = [
        {"wanted": wanted, "file": encode_opening(source.open(wanted)).hex()} for wanted in _OPENED
    ]
    return {
        "record": source.record.to_bytes().decode(),
        "secret": secret.hex(),
        "samples": samples,
        "openings": openings,
        "repeated": [_repeated(*case) for case in _SHOWN],
    }


def _repeated(shown: int, repeated: int, declared: int) -> Json:
    fails = distinct_bound(shown, repeated, declared) < LEAST_DISTINCT
    return {"shown": shown, "repeated": repeated, "declared": declared, "fails": fails}


def order_json() -> Json:
    """Orders of small data in full, of larger data by digest, and seeds."""
    seed = fixed("polo vectors: seed of a shard", 32)
    cases = [_order(Order(seed, *sizes)) for sizes in ((10, 3), (8, 4), (5, 5), (3, 1), (1, 1))]
    long = Order(seed, 5000, 64)
    joined = np.concatenate([long.batch(step) for step in range(2 * long.steps_per_pass)])
    return {
        "seed": seed.hex(),
        "orders": cases,
        "long": {
            "samples": 5000,
            "batch": 64,
            "steps": 2 * long.steps_per_pass,
            "sha256": hashlib.sha256(joined.astype("<u8").tobytes()).hexdigest(),
        },
    }


def _order(order: Order) -> Json:
    steps = [
        {
            "batch": order.batch(step).tolist(),
            "seed": str(order.seed(step)),
            "seeds": [str(seed) for seed in order.seeds(step)],
        }
        for step in range(2 * order.steps_per_pass + 1)
    ]
    return {"samples": order.samples, "batch": order.size, "steps": steps}


_RECIPES: dict[str, Json] = {
    "plain": {},
    "warm, then constant": {"warmup": 7, "rate": 0.3},
    "cosine": {"schedule": "cosine", "total": 1000, "rate": 0.1, "nesterov": True},
    "warm, then cosine": {
        "schedule": "cosine", "total": 500, "warmup": 13, "optimizer": "adamw", "rate": 0.001,
        "decay": 0.05,
    },
    "linear": {"schedule": "linear", "total": 77, "optimizer": "adam", "rate": 3e-4},
    "steps": {"schedule": "steps", "milestones": (30, 60, 90), "gamma": 0.3, "rate": 0.7},
}  # fmt: skip
_STEPS = (0, 1, 5, 6, 7, 12, 13, 29, 30, 59, 60, 75, 76, 77, 90, 250, 499, 500, 999, 1000, 10**6)

_REFUSED: dict[str, Json] = {
    "no such setting": {"speed": "1"},
    "a setting that is missing": {"every": None},
    "a setting of another optimizer": {"betas": "0.9 0.999"},
    "a setting of another schedule": {"total": "100"},
    "a zero before": {"batch": "064"},
    "a sign": {"batch": "+64"},
    "no samples": {"samples": "0"},
    "more in a batch than there are": {"batch": "1001"},
    "an infinite rate": {"rate": "1e999"},
    "a rate of nothing": {"rate": "0.0"},
    "a rate below nothing": {"rate": "-0.1"},
    "no number": {"rate": "nan"},
    "a rate in hex": {"rate": "0x1p-3"},
    "a momentum of one": {"momentum": "1.0"},
    "Nesterov without momentum": {"momentum": "0.0", "nesterov": "true"},
    "a word for a flag": {"nesterov": "True"},
    "an optimizer that nobody knows": {"optimizer": "lion"},
    "a million and one": {"tolerance": "1000001"},
}


def recipe_json() -> Json:
    """Recipes with rates of some steps, each as the shortest decimal of its double."""
    recipes = []
    for name, options in _RECIPES.items():
        recipe = Recipe(samples=1000, **options)
        rates = [{"step": step, "rate": repr(recipe.rate(step))} for step in _STEPS]
        recipes.append({"name": name, "settings": recipe.to_settings(), "rates": rates})
    refused = [{"name": name, "changes": changes} for name, changes in _REFUSED.items()]
    return {"recipes": recipes, "refused": refused}
