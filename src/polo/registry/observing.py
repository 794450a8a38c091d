"""What an operator sees: one JSON line for each thing that happens, and figures for Prometheus.

Lines hold paths and ids, never headers, queries or bodies. Whatever else gets into a message and
looks like a token, a signature, a password or a private key is taken out.
"""

import functools
import json
import logging
import re
import time
import traceback
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LOGGER = logging.getLogger("polo.registry")

_SECRETS = (
    (re.compile(r"polo_[A-Za-z0-9_-]{16,}"), "polo_[hidden]"),
    (
        re.compile(r"(?i)\b(signature|nonce|secret|token|password|csrf)=[^\s,;&\"']+"),
        r"\1=[hidden]",
    ),
    (re.compile(r"(?i)\b(bearer|PoLO) +\S+"), r"\1 [hidden]"),
    (re.compile(r"://[^/\s:@]+:[^@\s]+@"), "://[hidden]@"),
    (re.compile(r"-----BEGIN[^-]*PRIVATE KEY-----[\s\S]*"), "[hidden key]"),
    (re.compile(r"b(['\"])(?:\\.|(?!\1).){16,}\1"), "[hidden bytes]"),
)
_SUSPECT = re.compile(r"[=\s'\"_]|://|-----")
"""What every text has that one of these patterns fits."""

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "color_message", "message"}


def without_secrets(text: str) -> str:
    """The text without what must not be in a log.

    >>> without_secrets("token polo_abcdefghijklmnopqrstuv of postgresql://u:p@host/x")
    'token polo_[hidden] of postgresql://[hidden]@host/x'
    """
    if not _SUSPECT.search(text):  # Most of what is logged are paths, ids and words.
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class JsonFormatter(logging.Formatter):
    """One line of JSON a record: time, level, event, and whatever `extra` says."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        value: dict[str, Any] = {
            "time": f"{_moment(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            # It says everything under this name, errors or not.
            "logger": record.name.removesuffix(".error"),
            "event": without_secrets(record.getMessage()),
        }
        for name, given in record.__dict__.items():
            if name not in _PLAIN and given is not None:
                value[name] = without_secrets(given) if isinstance(given, str) else given
        if record.exc_info and record.exc_info[0]:
            value["traceback"] = without_secrets(
                "".join(traceback.format_exception(*record.exc_info))
            )
        return _ENCODER.encode(value)


@functools.lru_cache(maxsize=4)
def _moment(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=lambda other: type(other).__name__)


def say(event: str, **more: Any) -> None:
    """Log what happens with every request: without looking for the line of code that says so."""
    if LOGGER.isEnabledFor(logging.INFO):
        record = logging.LogRecord(LOGGER.name, logging.INFO, "", 0, event, None, None)
        record.__dict__.update(more)
        LOGGER.handle(record)


def log_to(stream: IO[str], level: str = "info") -> logging.Handler:
    """Send everything this process logs to a stream, as JSON."""
    # Nobody reads these, and every line would pay for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("alembic", "procrastinate", "sqlalchemy", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return handler


class Metrics:
    """Figures of one registry, each process its own.

    Attributes:
        collectors: Where domains add their own.
    """

    def __init__(self) -> None:
        self.collectors = CollectorRegistry()
        self.requests = Counter(
            "polo_requests_total",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.collectors,
        )
        self.seconds = Histogram(
            "polo_request_seconds",
            "Time from a request's head to its answer.",
            ("route",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.collectors,
        )
        self.running = Gauge(
            "polo_requests_running", "Requests being answered.", registry=self.collectors
        )
        self.refused = Counter(
            "polo_refused_total", "Requests refused.", ("code",), registry=self.collectors
        )

        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        at = method, route, status
        if at not in self._children:
            counter = self.requests.labels(method, route, str(status))
            self._children[at] = counter, self.seconds.labels(route)
        counter, histogram = self._children[at]
        counter.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self.collectors)
