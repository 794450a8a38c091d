"""`polo registry worker`: does the long work of a registry, beside its servers."""

import asyncio
import sys
from typing import Literal

from polo.cli.registry import DEFAULT, Options, load, need_parts
from polo.errors import TermsError


def worker(
    *,
    queue: Literal["cpu", "gpu"] = "cpu",
    concurrency: int = 1,
    options: Options = DEFAULT,
) -> None:
    """Verify proofs and check answers for a registry on PostgreSQL, until told to stop.

    It needs the registry's settings with jobs = "procrastinate", its data key and its file store.
    A job that a killed worker had is done again by another one.

    Example: polo registry worker --queue gpu --file registry.toml

    Parameters
    ----------
    queue
        Which work to take, by the hardware that it needs.
    concurrency
        Jobs at the same time.
    """
    need_parts()
    from polo.registry import observing
    from polo.registry.context import Registry
    from polo.registry.jobs.fleet import work

    settings = load(options)
    if settings.jobs != "procrastinate":
        raise TermsError(
            "this registry does its work inside its server",
            place="setting jobs",
            advice='Set jobs = "procrastinate", and a PostgreSQL database.',
        )
    observing.log_to(sys.stderr, settings.log_level)
    opened = Registry.open(settings)
    try:
        asyncio.run(work(opened, queue, concurrency=concurrency))
    finally:
        opened.close()
