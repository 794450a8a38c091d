"""The first shape of the database."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "answers",
        sa.Column("caller", sa.String(length=128), nullable=False),
        sa.Column("word", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("caller", "word", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_time"), "answers", ["time"], unique=False)
    op.create_table(
        "events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("request", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_subject"), "events", ["subject"], unique=False)
    op.create_table(
        "identities",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("registered", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_identities")),
        sa.UniqueConstraint("key", name=op.f("uq_identities_key")),
    )
    op.create_table(
        "issuer_keys",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("use", sa.String(length=16), nullable=False),
        sa.Column("private", sa.LargeBinary(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_issuer_keys")),
    )
    op.create_table(
        "jobs",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("queue", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("kind", "subject", name=op.f("uq_jobs_kind_subject")),
    )
    op.create_index("ix_jobs_state_queue_due", "jobs", ["state", "queue", "due"], unique=False)
    op.create_table(
        "log_heads",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_log_heads")),
    )
    op.create_table(
        "log_leaves",
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("entry", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("index", name=op.f("pk_log_leaves")),
    )
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "index", name=op.f("pk_log_nodes")),
    )
    op.create_table(
        "requests",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", "nonce", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_time"), "requests", ["time"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("scopes", sa.String(length=512), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
    op.create_table(
        "cosignatures",
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("witness", sa.String(length=256), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["size"], ["log_heads.size"], name=op.f("fk_cosignatures_size")),
        sa.PrimaryKeyConstraint("size", "witness", name=op.f("pk_cosignatures")),
    )
    op.create_table(
        "enrolments",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=128), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("layout", sa.LargeBinary(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=True),
        sa.Column("parent", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["identity"], ["identities.id"], name=op.f("fk_enrolments_identity")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolments")),
    )
    op.create_index(op.f("ix_enrolments_identity"), "enrolments", ["identity"], unique=False)
    op.create_index("ix_enrolments_issued_id", "enrolments", ["issued", "id"], unique=False)
    op.create_index("ix_enrolments_state_changed", "enrolments", ["state", "changed"], unique=False)
    op.create_index(op.f("ix_enrolments_task"), "enrolments", ["task"], unique=False)
    op.create_table(
        "identity_keys",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["identity"], ["identities.id"], name=op.f("fk_identity_keys_identity")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_identity_keys")),
    )
    op.create_index(op.f("ix_identity_keys_identity"), "identity_keys", ["identity"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name=op.f("fk_sessions_token")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires"), "sessions", ["expires"], unique=False)
    op.create_index(op.f("ix_sessions_token"), "sessions", ["token"], unique=False)
    op.create_table(
        "challenges",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["enrolment"], ["enrolments.id"], name=op.f("fk_challenges_enrolment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_challenges")),
    )
    op.create_index(op.f("ix_challenges_due"), "challenges", ["due"], unique=False)
    op.create_index(op.f("ix_challenges_enrolment"), "challenges", ["enrolment"], unique=False)
    op.create_table(
        "commitments",
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=True),
        sa.Column("opening", sa.String(length=64), nullable=True),
        sa.Column("matches", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["enrolment"], ["enrolments.id"], name=op.f("fk_commitments_enrolment")
        ),
        sa.PrimaryKeyConstraint("enrolment", "shard", name=op.f("pk_commitments")),
        sa.UniqueConstraint("index", name=op.f("uq_commitments_index")),
    )
    op.create_index(
        "ix_commitments_root_enrolment", "commitments", ["root", "enrolment"], unique=False
    )
    op.create_table(
        "marks",
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.LargeBinary(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("seeds", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["enrolment"], ["enrolments.id"], name=op.f("fk_marks_enrolment")),
        sa.PrimaryKeyConstraint("enrolment", name=op.f("pk_marks")),
    )
    op.create_table(
        "objects",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("keep_until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["enrolment"], ["enrolments.id"], name=op.f("fk_objects_enrolment")
        ),
        sa.PrimaryKeyConstraint("sha256", "enrolment", name=op.f("pk_objects")),
    )
    op.create_table(
        "scans",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("enrolment", sa.String(length=64), nullable=True),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("asked", sa.String(length=128), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("chains", sa.Integer(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("statement", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["enrolment"], ["enrolments.id"], name=op.f("fk_scans_enrolment")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scans")),
    )
    op.create_index(op.f("ix_scans_enrolment"), "scans", ["enrolment"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["enrolment"], ["enrolments.id"], name=op.f("fk_uploads_enrolment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_enrolment"), "uploads", ["enrolment"], unique=False)
    op.create_table(
        "verifications",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("enrolment", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("begun", sa.BigInteger(), nullable=True),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("progress", sa.String(length=256), nullable=False),
        sa.Column("bundle", sa.String(length=64), nullable=True),
        sa.Column("report", sa.String(length=64), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("verdict", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["enrolment"], ["enrolments.id"], name=op.f("fk_verifications_enrolment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verifications")),
    )
    op.create_index(
        op.f("ix_verifications_enrolment"), "verifications", ["enrolment"], unique=False
    )


def downgrade() -> None:
    """Drop all tables."""
    op.drop_index(op.f("ix_verifications_enrolment"), table_name="verifications")
    op.drop_table("verifications")
    op.drop_index(op.f("ix_uploads_enrolment"), table_name="uploads")
    op.drop_table("uploads")
    op.drop_index(op.f("ix_scans_enrolment"), table_name="scans")
    op.drop_table("scans")
    op.drop_table("objects")
    op.drop_table("marks")
    op.drop_index("ix_commitments_root_enrolment", table_name="commitments")
    op.drop_table("commitments")
    op.drop_index(op.f("ix_challenges_enrolment"), table_name="challenges")
    op.drop_index(op.f("ix_challenges_due"), table_name="challenges")
    op.drop_table("challenges")
    op.drop_index(op.f("ix_sessions_token"), table_name="sessions")
    op.drop_index(op.f("ix_sessions_expires"), table_name="sessions")
    op.drop_table("sessions")
    op.drop_index(op.f("ix_identity_keys_identity"), table_name="identity_keys")
    op.drop_table("identity_keys")
    op.drop_index(op.f("ix_enrolments_task"), table_name="enrolments")
    op.drop_index("ix_enrolments_state_changed", table_name="enrolments")
    op.drop_index("ix_enrolments_issued_id", table_name="enrolments")
    op.drop_index(op.f("ix_enrolments_identity"), table_name="enrolments")
    op.drop_table("enrolments")
    op.drop_table("cosignatures")
    op.drop_table("tokens")
    op.drop_index(op.f("ix_requests_time"), table_name="requests")
    op.drop_table("requests")
    op.drop_table("log_nodes")
    op.drop_table("log_leaves")
    op.drop_table("log_heads")
    op.drop_index("ix_jobs_state_queue_due", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("issuer_keys")
    op.drop_table("identities")
    op.drop_index(op.f("ix_events_subject"), table_name="events")
    op.drop_table("events")
    op.drop_index(op.f("ix_answers_time"), table_name="answers")
    op.drop_table("answers")
