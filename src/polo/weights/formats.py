"""Which format a file has, told from its first bytes; and why pickled models are refused.

The first bytes count for more than the name: a renamed file is read as what it is.
"""

import os
import shlex
from pathlib import Path
from typing import Literal

from polo.errors import StoreError, WeightsError
from polo.weights.files import open_plain

PICKLED = "pickled models are not opened: they can run code"
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")

Format = Literal["safetensors", "GGUF", "pickle", "unknown"]

_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; "
    "parts = [torch.load(f, map_location='cpu', weights_only=True) for f in sys.argv[1:-1]]; "
    "save_file({k: v.detach().contiguous().clone() for p in parts "
    "for k, v in p.get('state_dict', p).items() if torch.is_tensor(v)}, sys.argv[-1])"
)


def real_path(path: Path) -> Path:
    """Where a path that the user chose leads: their links, as in a model cache, are followed."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise StoreError(f"is no path: {error}", place=str(path)) from error


def format_of(path: Path) -> Format:
    """The format of a file, "pickle" for all that torch.save may have written.

    Raises:
        StoreError: The file cannot be opened.
    """
    with open_plain(real_path(path)) as file:
        head = file.read(9)
        size = os.fstat(file.fileno()).st_size
    if head.startswith(b"GGUF"):
        return "GGUF"
    # Must come before pickle: a header of 640 bytes starts like a pickle of protocol 2.
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    pickled = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    suffix = path.suffix.lower()
    if pickled or head.startswith(b"PK\x03\x04") or suffix in PICKLE_SUFFIXES:
        return "pickle"
    if suffix == ".gguf":
        return "GGUF"
    return "safetensors" if suffix == ".safetensors" else "unknown"


def conversion_advice(*files: str) -> str:
    """The command that turns pickled files into one safetensors file."""
    return (
        "Have it converted where it came from, by people who trust it; PoLO does not run this: "
        f'python -c "{_CONVERT}" {" ".join(map(shlex.quote, files))} model.safetensors'
    )


def pickle_refusal(path: Path, *files: str) -> WeightsError:
    """The error for a pickled file, or for a folder that holds these pickled files."""
    return WeightsError(PICKLED, place=str(path), advice=conversion_advice(*files or (path.name,)))
