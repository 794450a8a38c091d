"""The reading half of every scheme, by the name that terms use.

A scheme says which bits of a mark match the weights that carry it. The pressing half, which
needs torch, is registered under the same name in `polo.embedding.presses`. Other packages offer
schemes by the entry-point group `polo.schemes`: a class or an object with the interface `Scheme`,
under the name that terms use. A proof can only name what the verifier has installed.
"""

import difflib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import TermsError
from polo.protocol.layout import Tensor
from polo.watermark.ednn import Ednn
from polo.watermark.ednn_mean import EdnnMean
from polo.watermark.fedipr import Fedipr
from polo.watermark.fedipr_kernel import FediprKernel
from polo.watermark.interface import Bounded, Defaults, Scheme
from polo.watermark.offers import blame, offered, offers
from polo.watermark.riga import Riga
from polo.watermark.signed import Signed

if TYPE_CHECKING:
    from polo.watermark.mark import Mark

__all__ = ["GROUP", "SCHEMES", "Bounded", "Defaults", "Scheme", "matches", "objection", "scheme"]

GROUP = "polo.schemes"

SCHEMES: dict[str, Scheme] = {
    found.name: found for found in (Ednn(), EdnnMean(), Fedipr(), FediprKernel(), Riga(), Signed())
}
"""Schemes that are built in. No other package can take one of their names."""


def scheme(name: str) -> Scheme:
    """The scheme that terms call by this name.

    Raises:
        TermsError: There is none here, or the package that offers it is broken.
    """
    return SCHEMES[name] if name in SCHEMES else _offered(name)


def objection(own: Scheme, tensor: Tensor, *, norm: bool | None) -> str:
    """What a scheme objects to in a tensor; one that raises is another package's, and named."""
    try:
        return own.objection(tensor, norm=norm)
    except Exception as error:
        _blame(own.name, error)
        raise


def matches(
    mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
) -> NDArray[np.bool_]:
    """Which bits of a mark match, as its scheme says; one that cannot say is named likewise.

    Args:
        mark: The mark.
        values: Finite weights of these groups.
        groups: Which groups of the mark to read.
    """
    own = scheme(mark.scheme.name)
    try:
        right = own.matches(mark, values, groups)
        if np.shape(right) != (len(groups), mark.group_bits) or right.dtype != np.bool_:
            raise ValueError("`matches` must say true or false by group and bit")
    except Exception as error:
        _blame(own.name, error)
        raise
    return right


def _blame(name: str, error: Exception) -> None:
    if name not in SCHEMES:
        blame(GROUP, name, error)


@functools.lru_cache(maxsize=64)
def _offered(name: str) -> Scheme:
    found = offered(GROUP, name)
    if found is None:
        known = [*SCHEMES, *offers(GROUP)]
        near = difflib.get_close_matches(str(name).lower(), known, 1)
        meant = f"Did you mean {near[0]}? Or install" if near else "Install"
        raise TermsError(
            f"the scheme {name!r} is unknown; here are {', '.join(known)}",
            advice=f"{meant} the package that offers it (entry-point group {GROUP}).",
        )
    if not isinstance(found.item, Scheme) or found.item.name != name:
        raise found.broken("it is no polo.watermark.schemes.Scheme of that name")
    together = found.item.together
    if not isinstance(found.item.defaults, Defaults) or type(together) is not int or together < 1:
        raise found.broken("its `defaults` or `together` are not what Scheme asks for")
    return found.item
