"""Devices as the command line names them."""

from polo.errors import MissingError


def checked_device(name: str | None) -> str | None:
    """A device that was asked for, refused if this machine does not have it."""
    if name is None:
        return None
    try:
        import torch

        torch.empty(0, device=name)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise MissingError(
            f"{name[:64]!r} is no device of this machine, or torch cannot use it",
            place="--device",
            advice="Give cpu or cuda, or leave it out.",
        ) from error
    return name
