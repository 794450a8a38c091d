"""Write the test vectors of docs/protocol.md, or check that they are up to date.

    python vectors/make.py            rewrites vectors/*.json
    python vectors/make.py --check    exits 1 if any of them would differ

Everything that looks random comes from a fixed text by SHAKE-256, so the files are the same on
every machine.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def build() -> dict[str, str]:
    """The text of every vector file by name."""
    sys.path.insert(0, str(HERE.parent))
    from vectors import (
        documents,
        handover,
        logs,
        marks,
        recordings,
        replays,
        rollovers,
        starts,
        statements,
        trees,
    )

    makers = {
        "canonical": documents.canonical_json,
        "chain": documents.chain_json,
        "data": replays.data_json,
        "derivation": marks.derivation_json,
        "detection": marks.detection_json,
        "layout": trees.layout_json,
        "log": logs.log_json,
        "merkle": trees.merkle_json,
        "noise": marks.noise_json,
        "nonces": documents.nonces_json,
        "opening": trees.opening_json,
        "order": replays.order_json,
        "reading": marks.reading_json,
        "recipe": replays.recipe_json,
        "replay": recordings.replay_json,
        "rollover": rollovers.rollover_json,
        "root": trees.root_json,
        "schemes": marks.schemes_json,
        "seed": marks.seed_json,
        "signature": documents.signature_json,
        "start": starts.start_json,
        "terms": documents.terms_json,
        "transfer": handover.transfer_json,
        "uniqueness": statements.uniqueness_json,
    }
    return {
        f"{name}.json": json.dumps(make(), indent=1, sort_keys=True) + "\n"
        for name, make in makers.items()
    }


def differing(wanted: dict[str, str]) -> list[str]:
    """Names of files that are missing, are different, or should not be there."""
    found = {path.name: path.read_text() for path in HERE.glob("*.json")}
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))


def main() -> int:
    """Write or check; returns the exit code."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    wanted = build()
    if arguments:
        wrong = differing(wanted)
        for name in wrong:
            print(f"vectors/{name} is not what vectors/make.py writes", file=sys.stderr)
        return 1 if wrong else 0
    for name, text in wanted.items():
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
