"""Open challenges are found by state and time, however many have ended."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Exchange the index."""
    op.create_index("ix_challenges_state_due", "challenges", ["state", "due"], unique=False)
    op.drop_index(op.f("ix_challenges_due"), table_name="challenges")


def downgrade() -> None:
    """Exchange it back."""
    op.create_index(op.f("ix_challenges_due"), "challenges", ["due"], unique=False)
    op.drop_index("ix_challenges_state_due", table_name="challenges")
