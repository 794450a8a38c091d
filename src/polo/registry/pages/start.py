"""The commands that the first page offers to paste."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Commands:
    """Lines to paste, by step."""

    enrol: tuple[str, ...]
    train: tuple[str, ...]
    submit: tuple[str, ...]
    audit: tuple[str, ...]


def commands(url: str) -> Commands:
    """What a trainer types, with this registry's address in it."""
    place = shlex.quote(url)
    return Commands(
        enrol=(
            "pip install 'polo-proof[client,quickstart]'",
            "polo keygen me",
            "polo enrol --task digits \\",
            "  --identity me.key --out enrolment \\",
            f"  --registry {place}",
        ),
        train=(
            'prover = polo.Prover("enrolment",',
            '    key="me.key", store="proof")',
            "with prover.attach(model, optimizer,",
            "                   evaluate=test):",
            "    ...  # your loop, and in it",
            "    prover.end_epoch()",
            "prover.finish()",
        ),
        submit=("polo submit proof --key me.key", "polo status proof"),
        audit=(
            f"polo log audit {place}",
            "polo verify proof \\",
            "  --trust enrolment/issuer.pub",
        ),
    )
