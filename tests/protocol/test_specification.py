"""The specification keeps up with the code: labels, formats, sections, defaults, numbers."""

import dataclasses
import hashlib
import inspect
import re
import struct
from pathlib import Path

import pytest

import polo
from polo.checks import MEANINGS
from polo.evidence.progress import rules
from polo.evidence.replay import calibration, platform, state, timeline
from polo.protocol import canonical, chain, challenge, records, sampler, transfer
from polo.watermark.schemes import SCHEMES

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
}


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_label_and_format_is_specified(text):
    found = set()
    for path in SOURCES:
        found |= set(re.findall(r"polo/[a-z-]+/[0-9]+", path.read_text(encoding="utf-8")))
    # Printed for people and scripts, no part of the protocol.
    found -= {"polo/scan-result/1", "polo/verdict/1", "polo/identification/1", "polo/comparison/1"}
    # A registry's own file, which nobody else reads.
    found -= {"polo/registry-backup/1"}
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
    usual = dataclasses.asdict(SCHEMES["ednn"].defaults)
    assert signature.parameters["scheme"].default == "ednn"
    assert all(signature.parameters[argument].default is None for argument in usual)
    table = text.partition("**Default terms.**")[2]
    for term, argument in DEFAULTS.items():
        (written,) = re.findall(
            rf"^\| `{re.escape(term)}` \| `?([^`|]+?)`? \|", table, re.MULTILINE
        )
        default = usual.get(argument, signature.parameters[argument].default)
        written = written.replace("\N{MINUS SIGN}", "-")
        assert (written if isinstance(default, str) else float(written)) == default, term
    assert signature.parameters["fewest_steps"].default is None
    assert "| `fewest_steps` | 1; with replay a pass over the data |" in table
    noise = signature.parameters["noise"].default
    assert noise[0] == noise[1]
    assert f"| `noise.least`, `noise.most` | {noise[0]:.2f} |" in table
    strength, reduction, every = (usual[name] for name in ("strength", "reduction", "every"))
    joined = f"| `strength`, `reduction`, `every` | {strength}, `{reduction}`, {every} |"
    assert joined in table


def test_the_defaults_of_every_scheme_are_written_down(text):
    table = text.partition("For the other schemes these differ")[2]
    for name, scheme in SCHEMES.items():
        usual = scheme.defaults
        assert (usual.reduction, usual.every) == ("sum", 1)
        settings = (usual.bits, usual.block, usual.load, usual.strength, usual.budget, usual.margin)
        assert f"| `{name}` | {' | '.join(f'{value:g}' for value in settings)} |" in table
        assert f"| `{name}` |" in text.partition("| scheme | reads a bit as |")[2]


def test_the_limits_are_those_of_the_code(text):
    assert f"| `shard` | integer | 1..{records.MAX_SHARDS:,} |" in text
    assert f"| `shards` | list of Shard, {records.MAX_SHARDS:,} |" in text
    assert f"| `files` | list of File, {4 * records.MAX_SHARDS:,} |" in text
    assert f"| `bits` | int 8..{records.MAX_BITS:,} |" in text
    assert f"at most {records.MAX_DENSE_WEIGHTS:,} weights together" in text
    assert f"`noise.fraction` is 0 or at least {records.LEAST_FRACTION}" in text
    assert f"at most {transfer.MAX_ANCESTORS}, numbered without a gap" in text
    assert canonical.MAX_DOCUMENT_BYTES == 16 * 2**20
    assert "at most 16 MiB (16 · 2^20 bytes)" in text


def test_every_check_is_specified(text):
    checks = text.partition("The checks, in order.")[2].partition("\n## ")[0]
    named = set(re.findall(r"[a-z]+", " ".join(re.findall(r"\*\*([^*]+)\*\*", checks))))
    assert set(MEANINGS) <= named
    assert f"**{', '.join(chain.RULES)}.**" in checks


def test_the_table_of_the_sampler_is_the_one_written_down(text):
    table = sampler.table()
    assert hashlib.sha256(struct.pack(f"<{len(table)}Q", *table)).hexdigest() in text


def test_every_setting_of_progress_is_specified(text):
    own = text.partition("\n## 15. ")[2].partition("\n## ")[0]
    assert set(rules.KINDS) == set(re.findall(r"^\| `([a-z]+)` \|", own, re.MULTILINE))


def test_the_numbers_of_replay_are_those_of_the_code(text):
    assert f"at most 2^{timeline.MAX_SEGMENTS.bit_length() - 1} segments" in text
    assert f"then spaces up to {platform.SIZE} bytes" in text
    assert f"Threads (up to {platform.MAX_THREADS})" in text
    assert f"| `segments` | list of Place, {challenge.MAX_PLACES:,} |" in text
    assert state.PIECE_BYTES == 2**24
    assert "cut into pieces of 2^24 bytes" in text
    assert (state.MOVE_ONE, state.SATURATED) == (2**32, 2**63 - 1)
    assert (calibration.REPETITIONS, calibration.FACTOR, calibration.LEAST) == (3, 8.0, 1e-6)
    assert "runs the segment three times more" in text
    assert "max(10^−6, 8 · drift)" in text


def test_every_vector_file_is_named(text, vectors):
    for path in vectors.glob("*.json"):
        assert f"`{path.name}`" in text
