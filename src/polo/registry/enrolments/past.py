"""What became of an identity's other chains: whoever is caught early can begin again."""

from sqlalchemy import ColumnElement, Connection, exists, func, select

from polo.protocol.verdicts import Others
from polo.registry.schema import challenges, enrolments

STUCK = (challenges.c.state == "answered") & (challenges.c.detail != "")
"""A challenge whose answer could not be checked: what says why is written before it has ended."""

GOING = ("open", "closed")
"""States of a chain that may still come to a good end."""


def others(connection: Connection, identity: str, *, but: str = "") -> Others:
    """Count an identity's chains that came to no good end, or may not.

    One that was withdrawn with a challenge not passed counts as failed: it would have ended so.
    One whose challenge is open is counted, too: who is caught need not withdraw, and has time until
    it is due.

    Args:
        connection: A transaction.
        identity: Whose.
        but: A chain that is not counted.
    """
    unpassed, unchecked = _asked(challenges.c.state != "passed"), _asked(STUCK)
    withdrawn, going = enrolments.c.state == "withdrawn", enrolments.c.state.in_(GOING)
    own = (enrolments.c.identity == identity) & (enrolments.c.id != but)

    def count(which: ColumnElement[bool]) -> int:
        query = select(func.count()).select_from(enrolments).where(own, which)
        return connection.execute(query).scalar_one()

    return Others(
        failed=count((enrolments.c.state == "failed") | (withdrawn & unpassed)),
        # A chain that was enrolled and never begun says nothing about anybody.
        withdrawn=count(withdrawn & ~unpassed & (enrolments.c.shards > 0)),
        stuck=count(going & unchecked),
        waiting=count(going & unpassed & ~unchecked),
    )


def stuck_answers(connection: Connection) -> int:
    """How many answers wait for an operator: those of chains that may still go on."""
    of_chains = challenges.join(enrolments, enrolments.c.id == challenges.c.enrolment)
    query = select(func.count()).select_from(of_chains)
    return connection.execute(query.where(STUCK, enrolments.c.state.in_(GOING))).scalar_one()


def _asked(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(challenges.c.enrolment == enrolments.c.id, condition)
