"""Where recorded lines come from, in words."""

from collections.abc import Iterator

from polo_lab.experiments.lines import Recording


def origins(recording: Recording) -> Iterator[str]:
    """Command, day and machine of everything that added to a recording."""
    for call in recording.sources():
        machine = call["machine"]
        versions = ", ".join(f"{name} {v}" for name, v in machine["packages"].items())
        gpu = f", {machine['gpu']}" if machine["gpu"] else ""
        workers = call.get("workers", 0)
        then = "" if call["command"].startswith("polo-lab") else ", as the command was then"
        beside = f", {workers} processes at once" if workers > 1 else ""
        yield (
            f"`{call['command']}` ({call['began'][:10]}{then}) on {machine['cpu']}, "
            f"{machine['cores']} cores{gpu}{beside}; Python {machine['python']}, {versions}."
        )
