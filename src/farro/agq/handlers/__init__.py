"""Handle the commands: one module per topic, each with its part of the command table."""

from farro.agq.handlers import connection, jobs, keys, queues
from farro.agq.handlers.table import Command

TABLE: dict[bytes, Command] = {
    **connection.TABLE,
    **queues.TABLE,
    **keys.TABLE,
    **jobs.TABLE,
}
connection.LISTED.update(TABLE)
