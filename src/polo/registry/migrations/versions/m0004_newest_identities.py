"""The newest identities are found without looking at all of them."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("ix_identities_registered_id", "identities", ["registered", "id"], unique=False)


def downgrade() -> None:
    """Take it away."""
    op.drop_index("ix_identities_registered_id", table_name="identities")
