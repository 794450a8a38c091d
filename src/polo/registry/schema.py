"""The tables. Digests and keys are bytes, times are whole seconds, secrets are encrypted.

Portable between SQLite and PostgreSQL: no type of either alone. Rows of the log, of commitments and
of events are only ever added.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Serial = BigInteger().with_variant(Integer, "sqlite")
"""A number that counts up by itself, in either database."""

identities = Table(
    "identities",
    metadata,
    Column("id", String(64), primary_key=True),  # fingerprint of the key it was registered with
    Column("key", LargeBinary, nullable=False, unique=True),  # the key that counts now
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),  # prover, auditor, operator
    Column("registered", BigInteger, nullable=False),
    Column("revoked", BigInteger),
    Index("ix_identities_registered_id", "registered", "id"),  # for the newest first
)

identity_keys = Table(
    "identity_keys",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("identity", ForeignKey("identities.id"), nullable=False, index=True),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),  # SHA-256; the token is nowhere
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("scopes", String(512), nullable=False),  # words, separated by spaces
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("revoked", BigInteger),
)

requests = Table(
    "requests",
    metadata,
    Column("key", LargeBinary, primary_key=True),  # who signed it
    Column("nonce", LargeBinary, primary_key=True),
    Column("time", BigInteger, nullable=False, index=True),
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True),  # SHA-256 of the cookie; the cookie is nowhere
    Column("token", ForeignKey("tokens.id"), nullable=False, index=True),
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False, index=True),
)

answers = Table(
    "answers",
    metadata,
    # What a request with an Idempotency-Key was answered, so that a retry gets the same.
    Column("caller", String(128), primary_key=True),
    Column("word", String(128), primary_key=True),
    Column("digest", LargeBinary, nullable=False),  # of method, target and body
    Column("status", Integer, nullable=False),  # 0 while it is being made
    Column("body", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False, index=True),
)

enrolments = Table(
    "enrolments",
    metadata,
    Column("id", String(64), primary_key=True),  # the enrolment's digest, in hexadecimal
    Column("identity", ForeignKey("identities.id"), nullable=False, index=True),
    Column("task", String(128), nullable=False, index=True),
    Column("record", LargeBinary, nullable=False),  # canonical bytes
    Column("layout", LargeBinary, nullable=False),
    Column("secret", LargeBinary, nullable=False),  # κ, encrypted
    Column("state", String(16), nullable=False),  # open, closed, failed, withdrawn
    Column("shards", Integer, nullable=False),  # receipts given, without that of the start
    Column("issued", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("manifest", LargeBinary),  # canonical bytes, from the close on
    Column("parent", String(64)),  # enrolment of the chain it goes on from, if any
    Index("ix_enrolments_state_changed", "state", "changed"),
    Index("ix_enrolments_issued_id", "issued", "id"),  # for the newest first, in pages
)

commitments = Table(
    "commitments",
    metadata,
    Column("enrolment", ForeignKey("enrolments.id"), primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("root", LargeBinary, nullable=False),
    Column("record", LargeBinary, nullable=False),  # canonical bytes, signed by the prover
    Column("index", BigInteger, nullable=False, unique=True),  # place in the log
    Column("time", BigInteger, nullable=False),
    Column("receipt", LargeBinary),  # canonical bytes; none while a challenge is open
    Column("opening", String(64)),  # object that holds it
    Column("matches", Integer),  # bits that read right in the opening; none if not read
    # Many chains may start from the same root, so the root alone does not find one of them.
    Index("ix_commitments_root_enrolment", "root", "enrolment"),
)

log_leaves = Table(
    "log_leaves",
    metadata,
    Column("index", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("entry", LargeBinary, nullable=False),
)

log_nodes = Table(
    "log_nodes",
    metadata,
    # Roots of complete subtrees: of 2^level leaves, the index-th such.
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("index", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
)

log_heads = Table(
    "log_heads",
    metadata,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("note", Text, nullable=False),  # the checkpoint, signed
)

cosignatures = Table(
    "cosignatures",
    metadata,
    Column("size", ForeignKey("log_heads.size"), primary_key=True),
    Column("witness", String(256), primary_key=True),
    Column("line", Text, nullable=False),
    Column("time", BigInteger, nullable=False),
)

log_rollovers = Table(
    "log_rollovers",
    metadata,
    # A key of the log that another took over from, and what both signed about it.
    Column("old", LargeBinary, primary_key=True),
    Column("new", LargeBinary, nullable=False, unique=True),
    Column("time", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("enrolment", ForeignKey("enrolments.id"), nullable=False, index=True),
    Column("kind", String(16), nullable=False),  # opening, checkpoint, answer, proof, record
    Column("shard", Integer),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("received", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),  # open, stored, refused
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("server", String(32)),  # whose folder has the pieces
)

objects = Table(
    "objects",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("enrolment", ForeignKey("enrolments.id"), primary_key=True, index=True),
    Column("kind", String(16), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("made", BigInteger, nullable=False),
    Column("keep_until", BigInteger),
)

challenges = Table(
    "challenges",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("enrolment", ForeignKey("enrolments.id"), nullable=False, index=True),
    Column("shard", Integer),  # none after the close
    Column("kind", String(16), nullable=False),  # checkpoint, replay
    Column("record", LargeBinary, nullable=False),  # what is asked, canonical bytes
    Column("state", String(16), nullable=False),  # open, answered, passed, failed
    Column("answer", String(64)),  # object that holds it
    Column("detail", Text, nullable=False),
    Column("made", BigInteger, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Index("ix_challenges_state_due", "state", "due"),
)

verifications = Table(
    "verifications",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("enrolment", ForeignKey("enrolments.id"), nullable=False, index=True),
    Column("state", String(16), nullable=False),  # waiting, running, done, broken
    Column("made", BigInteger, nullable=False),
    Column("begun", BigInteger),
    Column("ended", BigInteger),
    Column("progress", String(256), nullable=False),
    Column("bundle", String(64)),  # object that was verified; none if put together here
    Column("report", String(64)),  # object that holds the page
    Column("outcome", String(16)),
    Column("verdict", LargeBinary),  # canonical bytes, signed by the registry
)

scans = Table(
    "scans",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("enrolment", ForeignKey("enrolments.id"), index=True),  # none for a found file
    Column("shard", Integer),  # whose checkpoint; none for a found file
    Column("asked", String(128), nullable=False),  # who wants to know
    Column("sha256", String(64), nullable=False),
    Column("state", String(16), nullable=False),  # waiting, running, done, broken
    Column("made", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Column("chains", Integer),
    Column("result", LargeBinary),
    Column("statement", LargeBinary),  # canonical bytes of a signed Uniqueness
)

marks = Table(
    "marks",
    metadata,
    # Made out of the commitments and κ when a scan needs it; can be dropped at any time.
    Column("enrolment", ForeignKey("enrolments.id"), primary_key=True),
    Column("kind", LargeBinary, nullable=False),  # digest of layout, carrier and scheme
    Column("shards", Integer, nullable=False),  # marks that are in it
    Column("first", BigInteger, nullable=False),  # place in the log of the first mark's shard
    Column("seeds", LargeBinary, nullable=False),  # one after the other, encrypted
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("subject", String(64), nullable=False),  # id of the row that it is about
    Column("queue", String(32), nullable=False),  # by hardware: cpu, gpu
    Column("state", String(16), nullable=False),  # waiting, running, done, broken
    Column("tries", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("held_until", BigInteger),  # lease of whoever runs it
    Column("error", Text),
    UniqueConstraint("kind", "subject"),
    Index("ix_jobs_state_queue_due", "state", "queue", "due"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("queue", String(32), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),  # its last sign of life
)

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(64), nullable=False, index=True),
    Column("detail", Text, nullable=False),
    Column("request", String(32)),
)

issuer_keys = Table(
    "issuer_keys",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("use", String(16), nullable=False),  # issuer, log
    Column("private", LargeBinary, nullable=False),  # encrypted
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),  # for new enrolments and heads; what it signed stays valid
)
