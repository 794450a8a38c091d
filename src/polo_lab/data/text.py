"""Text to train language models on: WikiText-2 and the BYU chitchat conversations.

Files may be plain or packed with xz or gzip. WikiText-2 is read under its original names
(`wikitext-2-raw/wiki.train.raw`, `wikitext-2/wiki.train.tokens`) or as `wikitext2_raw_*.txt` and
`wikitext2_v1_*.txt`; chitchat as `chitchat_byu.jsonl`, one conversation a line with its `turns`.
"""

import functools
import json
from collections.abc import Callable, Iterator

from polo.errors import FormatError
from polo_lab.data import files
from polo_lab.data.dataset import Dataset, Part, titled
from polo_lab.data.words import Vocabulary, manual, windows

LENGTH = 64
VOCABULARY = 33_281
"""All 33,278 tokens of WikiText-2's training part with its ends of lines, and three codes."""

_RAW = {
    "train": ("wikitext-2-raw/wiki.train.raw", "wikitext2_raw_train_first1MB.txt"),
    "test": ("wikitext-2-raw/wiki.test.raw", "wikitext2_raw_test.txt"),
}
_TOKENS = {
    "train": ("wikitext-2/wiki.train.tokens", "wikitext2_v1_train_articles_shuffled.txt"),
    "test": ("wikitext-2/wiki.test.tokens", "wikitext2_v1_test.txt"),
}
_WHOLE = {"train": 2_088_628, "test": 245_569}
"""Tokens of WikiText-2 (v1), with its ends of lines."""

_CHITCHAT = "chitchat_byu.jsonl"
_DIGESTS = {
    "wikitext2_raw_test.txt": "4f3e427e4aff23acff917a8a51aeae21bf12832256e26914c8fc250dcef4103c",
    "wikitext2_raw_train_first1MB.txt": (
        "202fe8b8c4853f1de79b459d8af874d7f043f8299995c769604ffde1b07eb860"
    ),
    "wikitext2_v1_test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    "wikitext2_v1_train_articles_shuffled.txt": (
        "728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89"
    ),
    _CHITCHAT: "058c7f9ee6ecac415186fe7084bfd5e49f02ad2fa9e58833c618c49478963a14",
}
"""SHA-256 of the files as they are unpacked."""


def wikitext(part: str) -> str:
    """WikiText-2, raw: part `train` (perhaps its beginning alone) or `test`."""
    return _read("WikiText-2", _RAW[part])


def wikitext2() -> Dataset:
    """WikiText-2 (v1), word by word: guess the next one at each of 64 places."""
    absent = [" or ".join(names) for names in _TOKENS.values() if not files.find(*names)]
    if absent:
        raise files.missing("WikiText-2", ", and ".join(absent))
    # A packed file is complete, or is refused when it is read.
    counted = [part for part in _TOKENS if files.find(_TOKENS[part][0])]
    there = {part: len(_tokens(part)) for part in counted}
    return _guessing("wikitext2", titled("WikiText-2 (v1)", there, _WHOLE, "tokens"), _tokens)


def stand_in() -> Dataset:
    """Python's own help; every fourth topic is for testing."""
    topics = manual()

    def words(part: str) -> list[str]:
        chosen = (topic for at, topic in enumerate(topics) if (at % 4 == 3) == (part == "test"))
        return [word for topic in chosen for word in topic]

    return _guessing("wikitext2-help", "Python's own help, in the place of WikiText-2", words)


def chitchat() -> Iterator[list[str]]:
    """Conversations, each as what was said in turn; two people speak."""
    for number, line in enumerate(_read("BYU chitchat", (_CHITCHAT,)).splitlines(), 1):
        try:
            turns = [str(turn["text"]) for turn in json.loads(line)["turns"]]
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError("is no conversation", place=f"chitchat, line {number}") from error
        if turns:
            yield turns


def _guessing(name: str, title: str, words: Callable[[str], list[str]]) -> Dataset:
    vocabulary = functools.cache(lambda: Vocabulary([words("train")], VOCABULARY))
    return Dataset(
        name,
        title,
        VOCABULARY,
        lambda part: Part(*windows(vocabulary().codes(words(part)), LENGTH)),
    )


def _tokens(part: str) -> list[str]:
    """Words of a part of WikiText-2 (v1), with its ends of lines."""
    text = _read("WikiText-2", _TOKENS[part])
    return [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]


def _read(what: str, names: tuple[str, ...]) -> str:
    path = files.find(*names)
    if path is None:
        raise files.missing(what, names[-1])
    return files.text(path, digest=_DIGESTS.get(files.plain_name(path), ""))
