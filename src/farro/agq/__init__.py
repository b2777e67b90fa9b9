"""Serve jobs over RESP (AGQ): any Redis client pushes, pops and answers jobs. docs/agq.md lists the commands.

resp           bytes → commands, within limits that are checked before anything is kept; values → bytes
connection     one client: order of replies, MULTI, limits of unread data
batcher        batches the calls of the store that every job needs: claims and commits
workers        workers and the jobs that they hold: claims for them, and hands jobs back when they are gone
blocking_pops  blocking pops: first come, first served
changes        threads that wait for changes in the store; subscriptions and job:updates
keys           the keys that exist, and glob patterns
memo_jobs      jobs and results in the memo's form
descriptions   jobs, queues and workers as data
handlers/      the commands
server         all of it on one port
client/        the worker's side: a store that works over RESP
"""
