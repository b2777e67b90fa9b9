"""What each command does: a file a topic, each with its part of the table.

How commands come and answers go lives beside this package.
"""

from farro.agq.handlers import batches, connection, jobs, keys, library, queues, results
from farro.agq.handlers.table import Command

TABLE: dict[bytes, Command] = {
    **connection.TABLE,
    **queues.TABLE,
    **results.TABLE,
    **keys.TABLE,
    **jobs.TABLE,
    **batches.TABLE,
    **library.TABLE,
}
connection.LISTED.update(TABLE)
