"""What each command does: a file a topic, each with its part of the table.

How commands come and answers go lives beside this package.
"""

from farro.fronts.resp.commands import connecting, jobs, keys, library, queues, results, rows, subscribing
from farro.fronts.resp.commands.table import Command

TABLE: dict[bytes, Command] = {
    **connecting.TABLE,
    **queues.TABLE,
    **results.TABLE,
    **keys.TABLE,
    **subscribing.TABLE,
    **jobs.TABLE,
    **rows.TABLE,
    **library.TABLE,
}
connecting.LISTED.update(TABLE)
