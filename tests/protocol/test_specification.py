"""The specification keeps up with the code: labels, formats, sections, defaults, numbers."""

import hashlib
import inspect
import re
import struct
from pathlib import Path

import pytest

import polo
from polo.protocol import sampler

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "polo").rglob("*.py"))

DEFAULTS = {
    "bits": "bits",
    "verify": "verify",
    "log2_p": "log2_p",
    "embed": "embed",
    "block": "block",
    "load": "load",
    "key": "key",
    "budget": "budget",
    "margin": "margin",
    "noise.fraction": "noise_fraction",
    "shards.most": "shards",
    "fewest_steps": "fewest_steps",
}


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_label_and_format_is_specified(text):
    found = set()
    for path in SOURCES:
        found |= set(re.findall(r"polo/[a-z-]+/[0-9]+", path.read_text(encoding="utf-8")))
    found.discard("polo/verdict/1")  # printed for people and scripts, no part of the protocol
    assert len(found) > 15
    assert {label for label in found if f"`{label}`" not in text} == set()


def test_every_section_that_the_code_cites_is_there(text):
    headings = set(re.findall(r"^#{2,3} ([0-9]+(?:\.[0-9]+)?)", text, flags=re.MULTILINE))
    cited = set()
    for path in SOURCES:
        for line in re.findall(r"docs/protocol\.md, sections? ([^\n]*)", path.read_text()):
            cited |= set(re.findall(r"[0-9]+(?:\.[0-9]+)?", line))
    assert len(cited) > 8
    assert cited <= headings


def test_the_defaults_are_those_of_the_code(text):
    signature = inspect.signature(polo.make_terms)
    table = text.partition("**Default terms.**")[2]
    for term, argument in DEFAULTS.items():
        (written,) = re.findall(
            rf"^\| `{re.escape(term)}` \| `?([^`|]+?)`? \|", table, re.MULTILINE
        )
        default = signature.parameters[argument].default
        written = written.replace("\N{MINUS SIGN}", "-")
        assert (written if isinstance(default, str) else float(written)) == default, term


def test_the_table_of_the_sampler_is_the_one_written_down(text):
    table = sampler.table()
    assert hashlib.sha256(struct.pack(f"<{len(table)}Q", *table)).hexdigest() in text


def test_every_vector_file_is_named(text, vectors):
    for path in vectors.glob("*.json"):
        assert f"`{path.name}`" in text
