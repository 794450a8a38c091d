"""Vectors of checkpoints: Merkle trees, layouts, roots, openings."""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from vectors.kit import Json, fixed, small_layout

from polo.protocol import commitment, merkle
from polo.protocol.layout import CHUNK_BYTES, DTYPE_BYTES, Layout, Tensor, Tie
from polo.storage import openings
from polo.weights.files import header_of
from polo.weights.hashing import commit

_SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 100)
_WANTED = {
    1: ((0,),),
    2: ((0,), (1,), (0, 1)),
    3: ((0,), (2,), (0, 2), (0, 1, 2)),
    5: ((4,), (1, 3), (0, 4)),
    7: ((0,), (6,), (2, 3, 5), (0, 1, 2, 3, 4, 5, 6)),
    8: ((0,), (7,), (3, 4)),
    100: ((0,), (99,), (63, 64), (1, 2, 3, 50, 97)),
}


def _leaves(count: int) -> list[bytes]:
    return [fixed(f"polo vectors: leaf {at}", 32) for at in range(count)]


def merkle_json() -> Json:
    """Roots of several sizes, and multiproofs. Leaf hashes are given, not leaves."""
    proofs = []
    for count, sets in _WANTED.items():
        for wanted in sets:
            proof = [item.hex() for item in merkle.multiproof(_leaves(count), wanted)]
            proofs.append({"count": count, "wanted": list(wanted), "proof": proof})
    return {
        "leaf_hashes": [leaf.hex() for leaf in _leaves(max(_SIZES))],
        "roots": [{"count": n, "root": merkle.root(_leaves(n)).hex()} for n in _SIZES],
        "multiproofs": proofs,
    }


@dataclass(frozen=True)
class Raw:
    """A checkpoint made of raw bytes by tensor name."""

    layout: Layout
    data: dict[str, bytes]

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a tensor."""
        return self.data[self.layout.tensors[tensor].name][start:stop]


_LONG = "polo vectors: long tensor"
_LONG_SIZE = CHUNK_BYTES + 16


def checkpoint() -> Raw:
    """A checkpoint with many types, an empty tensor, a scalar, a tie and two chunks."""
    data = {
        "a.bfloat16": bytes.fromhex("803f00c0004000be"),
        "a.bool": bytes([1, 0, 1]),
        "a.double": struct.pack("<3d", 1.0, -0.0, 5e-324),
        "a.empty": b"",
        "a.float": struct.pack("<6f", 0.0, -1.5, 3.25, 2.0**-126, 1e-45, 65504.0),
        "a.half": np.array([1.0, -2.0, 65504.0, 6e-8], dtype="<f2").tobytes(),
        "a.long": fixed(_LONG, _LONG_SIZE),
        "a.scalar": struct.pack("<q", -2),
        "a.é": fixed("polo vectors: bytes", 5),
    }
    kinds = {
        "a.bfloat16": ("BF16", (2, 2)),
        "a.bool": ("BOOL", (3,)),
        "a.double": ("F64", (3,)),
        "a.empty": ("F32", (4, 0)),
        "a.float": ("F32", (2, 3)),
        "a.half": ("F16", (4,)),
        "a.long": ("U8", (_LONG_SIZE,)),
        "a.scalar": ("I64", ()),
        "a.é": ("I8", (5,)),
    }
    tensors = tuple(Tensor(name, *kinds[name]) for name in sorted(data, key=str.encode))
    layout = Layout(CHUNK_BYTES, tensors, (Tie("z.tied", "a.float"),))
    layout.check()
    return Raw(layout, data)


_REFUSED: dict[str, tuple[str, str]] = {
    "names out of order": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"b","shape":[1]},{"dtype":"F32","name":"a","shape":[1]}],"ties":[]}',
        "order",
    ),
    "a name twice": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a","shape":[1]},{"dtype":"F32","name":"a","shape":[1]}],"ties":[]}',
        "order",
    ),
    "a tie to nothing": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a","shape":[1]}],"ties":[{"alias":"b","name":"c"}]}',
        "tie",
    ),
    "a tie that is a tensor": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a","shape":[1]}],"ties":[{"alias":"a","name":"a"}]}',
        "tie",
    ),
    "no tensor": ('{"chunk":16384,"format":"polo/layout/1","tensors":[],"ties":[]}', "empty"),
    "another chunk": (
        '{"chunk":4096,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a","shape":[1]}],"ties":[]}',
        "chunk",
    ),
    "an unknown type": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F31","name":"a","shape":[1]}],"ties":[]}',
        "type",
    ),
    "a negative length": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a","shape":[-1]}],"ties":[]}',
        "shape",
    ),
    "more than 2^48 bytes": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F64","name":"a","shape":[2,17592186044417]}],"ties":[]}',
        "size",
    ),
    "the name of the metadata": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"__metadata__","shape":[1]}],"ties":[]}',
        "name",
    ),
    "a control character": (
        '{"chunk":16384,"format":"polo/layout/1","tensors":['
        '{"dtype":"F32","name":"a\\nb","shape":[1]}],"ties":[]}',
        "name",
    ),
}


def layout_json() -> Json:
    """Layouts with all that follows from them, and layouts to refuse."""
    valid = []
    for name, layout in (("small", small_layout()), ("many types", checkpoint().layout)):
        valid.append(
            {
                "name": name,
                "document": layout.to_bytes().decode(),
                "digest": layout.digest.hex(),
                "sizes": [tensor.size for tensor in layout.tensors],
                "offsets": list(layout.offsets),
                "first_leaf": list(layout.first_leaf),
                "leaves": [
                    [leaf.tensor, leaf.chunk, leaf.start, leaf.length] for leaf in layout.leaves()
                ],
            }
        )
    refused = [
        {"name": name, "document": document, "why": why}
        for name, (document, why) in _REFUSED.items()
    ]
    return {"bytes_per_element": DTYPE_BYTES, "valid": valid, "refused": refused}


def root_json() -> Json:
    """Raw bytes of every tensor, the leaf hashes, the root, and the file's header."""
    raw = checkpoint()
    found = commit(raw, threads=1)
    data: dict[str, Json] = {name: {"hex": body.hex()} for name, body in raw.data.items()}
    data["a.long"] = {"shake_256": _LONG, "size": _LONG_SIZE}
    header = header_of(raw.layout)
    body = b"".join(raw.data[tensor.name] for tensor in raw.layout.tensors)
    return {
        "layout": raw.layout.to_bytes().decode(),
        "layout_digest": raw.layout.digest.hex(),
        "tensors": data,
        "leaf_hashes": [leaf.hex() for leaf in found.leaves],
        "tree": merkle.root(found.leaves).hex(),
        "root": found.root.hex(),
        "file_header": header.hex(),
        "file_sha256": hashlib.sha256(header + body).hexdigest(),
        "not_boolean": [{"dtype": "BOOL", "hex": data} for data in ("02", "000100ff", "010180")],
        "not_finite": [
            {"dtype": dtype, "hex": data}
            for dtype, data in (
                ("F16", "007c"), ("F16", "01fc"), ("BF16", "807f"), ("BF16", "c1ff"),
                ("F32", "0000807f"), ("F32", "0000c0ff"), ("F64", "000000000000f07f"),
                ("F64", "000000000000f8ff"), ("C64", "000000000000807f"), ("F8_E4M3", "7f"),
                ("F8_E4M3", "ff"), ("F8_E5M2", "7c"), ("F8_E5M2", "fd"), ("F8_E4M3FNUZ", "80"),
                ("F8_E5M2FNUZ", "80"), ("F8_E8M0", "ff"), ("C32", "0000007c"),
            )
        ],
    }  # fmt: skip


def opening_json() -> Json:
    """An opening of three leaves of the checkpoint in root.json, and openings to refuse."""
    raw = checkpoint()
    found = commit(raw, threads=1)
    layout = raw.layout
    leaves = dict(enumerate(layout.leaves()))
    # The second chunk of the long tensor, the doubles, and the last leaf of all.
    wanted = [layout.first_leaf[layout.index["a.double"]], layout.leaf_count - 1]
    wanted.append(layout.first_leaf[layout.index["a.long"]] + 1)
    where = {index: leaves[index] for index in sorted(wanted)}
    opening = found.open(raw, where)
    chunks = [
        {
            "leaf": index,
            "tensor": leaf.tensor,
            "chunk": leaf.chunk,
            "hex": opening.chunks[index].hex(),
        }
        for index, leaf in where.items()
    ]
    file = openings.encode(opening)
    moved = commitment.Opening(
        {index: opening.chunks[index] for index in where}, opening.path[::-1]
    ).root(layout, where, place="vector")
    return {
        "layout": layout.to_bytes().decode(),
        "chunks": chunks,
        "path": [item.hex() for item in opening.path],
        "root": found.root.hex(),
        "file": file.hex(),
        "other_roots": [{"name": "the path in reverse", "root": moved.hex()}],
        "refused_files": [
            {"name": "one byte short", "hex": file[:-1].hex()},
            {"name": "one byte long", "hex": (file + b"\0").hex()},
            {"name": "a space in the header", "hex": file.replace(b"{", b" ", 1).hex()},
            {
                "name": "another leaf index",
                "hex": file.replace(struct.pack("<q", wanted[0]), struct.pack("<q", 99), 1).hex(),
            },
        ],
    }
