"""Figures that are in the database, counted when somebody asks for the metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from polo.registry.context import Registry
from polo.registry.enrolments import past
from polo.registry.log import service as log
from polo.registry.schema import challenges, enrolments, jobs


class _Figures(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See prometheus_client."""
        now = self._registry.clock()
        with self._registry.database.read() as connection:
            head = log.newest(connection)
            chains = connection.execute(
                select(enrolments.c.state, func.count()).group_by(enrolments.c.state)
            ).all()
            work = connection.execute(
                select(jobs.c.queue, jobs.c.state, func.count()).group_by(
                    jobs.c.queue, jobs.c.state
                )
            ).all()
            waiting = (jobs.c.state == "waiting") & (jobs.c.due > 0)
            oldest = connection.execute(select(func.min(jobs.c.due)).where(waiting)).scalar()
            open_ = challenges.c.state == "open"
            asked = connection.execute(select(func.count()).where(open_)).scalar_one()
            stuck = past.stuck_answers(connection)
        yield _gauge("polo_log_entries", "Entries of the log.", head.size if head else 0)
        yield _gauge("polo_commitments_waiting", "Commitments that wait for the log's writer.",
                     self._registry.sequencer.waiting)  # fmt: skip
        yield _gauge("polo_challenges_open", "Challenges that wait for an answer.", asked)
        yield _gauge("polo_challenges_stuck", "Answers that could not be checked.", stuck)
        late = max(0, now - oldest) if oldest is not None else 0
        yield _gauge("polo_jobs_late_seconds", "How long the oldest job has been due.", late)
        states = GaugeMetricFamily("polo_enrolments", "Enrolments by state.", labels=["state"])
        for state, count in chains:
            states.add_metric([state], count)
        yield states
        counts = GaugeMetricFamily(
            "polo_jobs", "Jobs by queue and state.", labels=["queue", "state"]
        )
        for queue, state, count in work:
            counts.add_metric([queue, state], count)
        yield counts


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def text(registry: Registry) -> bytes:
    """The figures in Prometheus's text format."""
    collectors = CollectorRegistry()
    collectors.register(_Figures(registry))
    return generate_latest(collectors)
