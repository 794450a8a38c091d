"""Where the paper's tables and text do not agree, in sentences; every number is one of its own."""

from collections.abc import Iterator, Mapping

from polo_lab.experiments.paper import published

_ROUNDED = 0.1
"""Points that a rate may be off by rounding."""


def of_the_paper() -> Iterator[str]:
    """What its own tables say against its text."""
    timing, attacks = published.table("timing"), published.table("ofa-wma")
    if not timing or not attacks:
        return
    yield _subtracted([row.figures for row in timing])
    yield _generation([row.figures for row in timing])
    yield from _verification([row.figures for row in timing])
    yield _replayed([row.figures for row in timing])
    yield from _attacked([row.figures for row in attacks])
    yield from _priced()
    yield from _sized()
    yield from _language_models()
    yield from _slips([row.figures for row in timing])


def _subtracted(cells: list[Mapping[str, float]]) -> str:
    gaps = [
        abs(c["vanilla_verification"] - (c["vanilla_generation"] - c["polo_verification"]))
        for c in cells
    ]
    near = sum(gap < 1 for gap in gaps)
    return (
        "Its times of vanilla verification are, to within a second, those of vanilla generation "
        f"less PoLO's verification in {near} of {len(cells)} cells. Whoever runs all steps again "
        "takes as long as training, whatever PoLO takes."
    )


def _generation(cells: list[Mapping[str, float]]) -> str:
    cheaper = sum(c["vanilla_proof"] < c["polo_proof"] for c in cells)
    most = max(c["vanilla_proof"] / c["training"] for c in cells)
    return (
        "Proofs by replay are said to cost about as much to make as a training. In its table "
        f"vanilla's add {100 * most:.1f} % to it at most, and less than PoLO's in {cheaper} of "
        f"{len(cells)} cells."
    )


def _verification(cells: list[Mapping[str, float]]) -> Iterator[str]:
    shares = [100 * c["polo_verification"] / c["polo_generation"] for c in cells]
    low, high, most = (
        _said("verification, part of generation", k) for k in ("low", "high", "most")
    )
    below = sum(share <= high for share in shares)
    yield (
        f"Verification is said to take {low:g} to {high:g} % of generation, and under {most:g} %. "
        f"In its table it takes {min(shares):.1f} to {max(shares):.1f} %, and at most {high:g} % "
        f"in {below} of {len(cells)} cells."
    )
    low, high = (_said("verification, part of training", k) for k in ("low", "high"))
    parts = [100 * c["polo_verification"] / c["training"] for c in cells]
    over = sum(share > high for share in parts)
    yield (
        f"At the beginning and at the end it is {low:g} to {high:g} % of training; in its table "
        f"more in {over} of {len(cells)} cells, up to {max(parts):.1f} %."
    )


def _replayed(cells: list[Mapping[str, float]]) -> str:
    low, high = (_said("verification by replay, part of generation", k) for k in ("low", "high"))
    shares = [100 * c["vanilla_verification"] / c["vanilla_generation"] for c in cells]
    outside = sum(not low <= share <= high for share in shares)
    faster = sum(c["hash_verification"] < c["vanilla_verification"] for c in cells)
    return (
        f"Verification by replay is said to take {low:g} to {high:g} % of generation; vanilla's "
        f"takes {min(shares):.1f} to {max(shares):.1f} % in its table, outside of that in "
        f"{outside} of {len(cells)} cells. With hashes on top it takes less time in {faster}."
    )


def _said(what: str, which: str) -> float:
    return published.figure("text", which, what=what) or 0.0


def _attacked(cells: list[Mapping[str, float]]) -> Iterator[str]:
    chosen = published.figure("eta-ver", "eta_ver", what="threshold") or 0.0
    below = [c["ofa_eta"] for c in cells if c["ofa_eta"] < 100 * chosen]
    said = _said("lowest rate after OFA", "eta")
    yield (
        f"Its threshold η_ver = {chosen:.2f} lies above {len(below)} of its own {len(cells)} rates "
        f"after OFA; the lowest is {min(below):.2f} %, not {said} %."
    )
    costs = [c["ofa_seconds"] / c["polo_seconds"] for c in cells]
    low, high = (_said("cost of OFA, times generation", k) for k in ("low", "high"))
    yield (
        f"OFA costs {min(costs):.2f} to {max(costs):.2f} times generation in its table, not "
        f"{low:g} to {high:g}."
    )
    least = _said("rate after attacks", "least")
    weak = sum(c["ofa_eta"] <= least for c in cells)
    yield f"Marks are said to keep over {least:g} % after attacks; after OFA {weak} of them do not."
    said, lowest = _said("rate after WMA", "least"), min(c["wma_eta"] for c in cells)
    if lowest < said:
        yield f"After WMA marks are said to stay above {said:g} %; the lowest reads {lowest:g} %."
    ends = 100 * (published.figure("eta-ver", "eta_g", what="threshold") or 0.0)
    for cell in (c for c in cells if c["polo_eta"] < ends):
        yield (
            f"One of its honest marks reads {cell['polo_eta']:.2f} %, although shards are said to "
            f"end at {ends:g} %; after OFA it is said to read {cell['ofa_eta']:.2f} %."
        )


def _priced() -> Iterator[str]:
    rows = published.table("cost")
    prices = sorted(3600 * row.figures["usd"] / row.figures["seconds"] for row in rows)
    yield (
        f"Its two prices in USD come to {prices[0]:.4f} and {prices[-1]:.4f} USD an hour of the "
        "same machine."
    )
    took, usd = (_said("cheapest WMA", k) for k in ("seconds", "usd"))
    yield (
        f"Its cheapest WMA takes {took:g} s and is said to cost {usd:g} USD; by those prices it "
        f"is {took * prices[-1] / 3600:.3f} USD."
    )


def _sized() -> Iterator[str]:
    """Shard rates that do not grow when marks shrink."""
    rates: dict[tuple[str, str], dict[int, float]] = {}
    for row in published.table("fidelity"):
        own = row.settings
        rates.setdefault((own["pair"], own["scheme"]), {})[own["bits"]] = row.figures["shard_rate"]
    kept = [[by[bits] for bits in sorted(by, reverse=True)] for by in rates.values()]
    level = sum(len(set(own)) < len(own) or own != sorted(own) for own in kept)
    if level:
        yield (
            "Shorter marks are said to raise |s| everywhere; in its table they do not in "
            f"{level} of {len(kept)} rows."
        )


_SPOKEN = {
    ("polo", "generation"): "proof generation",
    ("polo", "verification"): "verification",
    ("gd-pol", "verification"): "verification by replay",
}


def _language_models() -> Iterator[str]:
    """Minutes that its text and its table of language models give differently."""
    tables, texts = published.table("llm"), published.table("llm-text")
    for model in dict.fromkeys(row.settings["model"] for row in texts):
        for (method, what), spoken in _SPOKEN.items():
            own, other = (
                [
                    row.figures[f"{what}_minutes"]
                    for row in rows
                    if (row.settings["model"], row.settings["method"]) == (model, method)
                    and f"{what}_minutes" in row.figures
                ]
                for rows in (texts, tables)
            )
            if own and own != other:
                yield (
                    f"Of {model} its text says {_minutes(own)} minutes of {spoken}, and its table "
                    f"{_minutes(other)}."
                )


def _minutes(values: list[float]) -> str:
    return " and ".join(f"{value:.2f}" for value in values)


def _slips(cells: list[Mapping[str, float]]) -> Iterator[str]:
    """Single cells that cannot be."""
    for cell in (c for c in cells if c["hash_generation"] < c["training"]):
        yield (
            f"Training takes {cell['training']:.2f} s in one cell, and with a proof by hashes on "
            f"top {cell['hash_generation']:.2f} s."
        )
    for row in (*published.table("learning-rate"), *published.table("eta-g")):
        own = row.figures
        rate = 100 * own["shards"] / own["epochs"]
        if abs(rate - own["shard_rate"]) > _ROUNDED:
            yield (
                f"{own['shards']:g} shards in {own['epochs']:g} epochs are {rate:.2f} %, not "
                f"{own['shard_rate']:.2f} %; that cell's accuracy is {own['accuracy']:.2f} %."
            )
