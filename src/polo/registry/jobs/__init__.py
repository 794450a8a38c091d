"""Long work: enqueued in the transaction that asks for it, done by this process or by workers.

Every job is a row of the table `jobs`, whoever does it. *Inside*, a thread of the server takes the
rows in turn. With *procrastinate*, workers on other machines take them by queue; the row and the
message to the workers are written in the caller's own transaction. Either way a job that was being
done when its process was killed is done again, so a handler must be able to start over.
"""

from polo.registry.jobs.handlers import HANDLERS, PERIODIC, Later, handler
from polo.registry.jobs.queue import QUEUES, Jobs

__all__ = ["HANDLERS", "PERIODIC", "QUEUES", "Jobs", "Later", "handler"]
