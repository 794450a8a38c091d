"""Keys of the log that took over, workers, where pieces of uploads lie, files by chain."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two tables, the column and the index."""
    op.create_table(
        "log_rollovers",
        sa.Column("old", sa.LargeBinary(), nullable=False),
        sa.Column("new", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("old", name=op.f("pk_log_rollovers")),
        sa.UniqueConstraint("new", name=op.f("uq_log_rollovers_new")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("queue", sa.String(length=32), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_objects_enrolment"), "objects", ["enrolment"], unique=False)
    op.add_column("uploads", sa.Column("server", sa.String(length=32), nullable=True))


def downgrade() -> None:
    """Take them away again; a log whose key was changed cannot be read by the older version."""
    with op.batch_alter_table("uploads") as batch:
        batch.drop_column("server")
    op.drop_index(op.f("ix_objects_enrolment"), table_name="objects")
    op.drop_table("workers")
    op.drop_table("log_rollovers")
