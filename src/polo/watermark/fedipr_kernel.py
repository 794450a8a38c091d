"""FedIPR in weight matrices and kernels, for models without norm layers.

It reads as EDNN does and sits where EDNN does; the hinge that presses it is FedIPR's.

Specification: docs/protocol.md, section 7.5.
"""

from polo.watermark.ednn import Ednn
from polo.watermark.interface import Defaults


class FediprKernel(Ednn):
    """See `polo.watermark.schemes.Scheme`."""

    name = "fedipr-kernel"
    defaults = Defaults()
