"""PoLO: prove that you trained a model and that it is yours.

Training is cut into *shards*. Each shard presses a watermark into the weights that is derived,
by hash, from the checkpoint before it; a verifier walks the chain backwards and reads every mark.

A trainer adds three lines to a PyTorch loop:

    prover = polo.Prover("enrolment/", key="alice.key", store="proof/")
    with prover.attach(model, optimizer):
        for epoch in range(prover.epoch, epochs):
            train_one_epoch(...)
            prover.end_epoch(evaluate=lambda: accuracy(model))
    proof = prover.finish()

A buyer checks the proof offline:

    verdict = polo.verify("proof/", trust="issuer.pub")
    verdict.outcome, verdict.headline()

Somebody who finds a model asks whose it is:

    result = polo.identify("found.safetensors", ["proof/"], trust="issuer.pub")
    result.finding, result.headline()

An issuer fixes the terms:

    terms = polo.make_terms(polo.tasks.load("digits"), bits=256)
    polo.enrol(terms, identity=public_key, issuer=issuer_key).save("enrolment/")

What the parts are called, from the bottom up: `polo.protocol` (what both sides must agree on, byte
for byte), `polo.weights`, `polo.watermark` (reading), `polo.embedding` (pressing),
`polo.privacy`, `polo.storage`, `polo.alignment`, `polo.ownership` (whose model is this),
`polo.evidence` (was it trained), `polo.prover`, `polo.verifier`, `polo.cli`.

Names are imported when they are first used: `import polo` loads neither numpy nor torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from polo._version import __version__

if TYPE_CHECKING:
    from polo import errors, keys, tasks, weights
    from polo.client.client import Client
    from polo.client.enrolled import LiveEnrolment
    from polo.enrolment import capacity_of, enrol, make_terms
    from polo.errors import PoloError
    from polo.evidence.replay.data import DataSource
    from polo.evidence.replay.recipe import Recipe
    from polo.evidence.start import draw_start
    from polo.keys import Identity, TrustStore
    from polo.ownership import compare, identify
    from polo.prover import EmbeddingWarning, Proof, Prover, ReceiptWarning
    from polo.prover.release import released
    from polo.receipts import OfflineEnrolment
    from polo.storage.model import load_weights
    from polo.verifier import Outcome, Policy, Verdict, verify

_HOMES = {
    "Client": "polo.client.client",
    "DataSource": "polo.evidence.replay.data",
    "EmbeddingWarning": "polo.prover",
    "Identity": "polo.keys",
    "LiveEnrolment": "polo.client.enrolled",
    "OfflineEnrolment": "polo.receipts",
    "ReceiptWarning": "polo.prover",
    "Outcome": "polo.verifier",
    "Policy": "polo.verifier",
    "PoloError": "polo.errors",
    "Proof": "polo.prover",
    "Prover": "polo.prover",
    "Recipe": "polo.evidence.replay.recipe",
    "TrustStore": "polo.keys",
    "Verdict": "polo.verifier",
    "capacity_of": "polo.enrolment",
    "compare": "polo.ownership",
    "draw_start": "polo.evidence.start",
    "enrol": "polo.enrolment",
    "identify": "polo.ownership",
    "load_weights": "polo.storage.model",
    "make_terms": "polo.enrolment",
    "released": "polo.prover.release",
    "verify": "polo.verifier",
}
_MODULES = ("errors", "keys", "tasks", "weights")

__all__ = [
    "Client",
    "DataSource",
    "EmbeddingWarning",
    "Identity",
    "LiveEnrolment",
    "OfflineEnrolment",
    "Outcome",
    "Policy",
    "PoloError",
    "Proof",
    "Prover",
    "ReceiptWarning",
    "Recipe",
    "TrustStore",
    "Verdict",
    "__version__",
    "capacity_of",
    "compare",
    "draw_start",
    "enrol",
    "errors",
    "identify",
    "keys",
    "load_weights",
    "make_terms",
    "released",
    "tasks",
    "verify",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"polo.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'polo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
