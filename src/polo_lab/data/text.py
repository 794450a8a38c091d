"""Text to train language models on: WikiText-2 and the BYU chitchat conversations.

Files may be plain or packed with xz. WikiText-2 is read under its original names
(`wikitext-2-raw/wiki.train.raw`) or as `wikitext2_raw_*.txt`; chitchat as `chitchat_byu.jsonl`, one
conversation a line with its `turns`.
"""

import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

from polo.errors import FormatError, MissingError

_WIKITEXT = {
    "train": ("wikitext-2-raw/wiki.train.raw", "wikitext2_raw_train_first1MB.txt"),
    "test": ("wikitext-2-raw/wiki.test.raw", "wikitext2_raw_test.txt"),
}
_CHITCHAT = ("chitchat_byu.jsonl",)
MOST_BYTES = 2**28


def wikitext(part: str) -> str:
    """WikiText-2, raw: part `train` (perhaps its beginning alone) or `test`."""
    return _read("WikiText-2", _WIKITEXT[part])


def chitchat() -> Iterator[list[str]]:
    """Conversations, each as what was said in turn; two people speak."""
    for number, line in enumerate(_read("BYU chitchat", _CHITCHAT).splitlines(), 1):
        try:
            turns = [str(turn["text"]) for turn in json.loads(line)["turns"]]
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError("is no conversation", place=f"chitchat, line {number}") from error
        if turns:
            yield turns


def _read(what: str, names: tuple[str, ...]) -> str:
    folder = Path(os.environ.get("POLO_DATA", ""))
    for name in names:
        if (plain := folder / name).is_file():
            with plain.open("rb") as file:
                return _text(file.read(MOST_BYTES + 1), str(plain))
        if (packed := folder / f"{name}.xz").is_file():
            try:
                with lzma.open(packed) as unpacked:
                    return _text(unpacked.read(MOST_BYTES + 1), str(packed))
            except lzma.LZMAError as error:
                raise FormatError(f"cannot be unpacked: {error}", place=str(packed)) from error
    raise MissingError(
        f"{what} is not here", advice=f"Let POLO_DATA name the folder that holds {names[-1]}."
    )


def _text(data: bytes, place: str) -> str:
    if len(data) > MOST_BYTES:
        raise FormatError(f"more than {MOST_BYTES} bytes of text", place=place)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("is no UTF-8 text", place=place) from error
