"""Handle the commands: one module per topic, each with its part of the command table."""

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
