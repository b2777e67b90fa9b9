"""The RESP front (AGQ): any Redis client pushes, pops and answers jobs. docs/agq.md tells what it understands.

What a job may say lives in plans.memo, what is done with it in operations.memo; jobs lie in a store.

    wire         bytes → commands, within limits that are checked before anything is kept
    replies      values → bytes, in RESP2 or RESP3
    connection   one client: order of answers, MULTI, limits of what it may leave lying
    desk         a thread for what every job needs of the store: done together with what else waits
    hands        … and what it does there
    later        answers that come when that is done
    roster       workers, and the jobs in their hands
    workers      what becomes of them, and when they are gone
    waiting      blocking pops: first come, first served
    channels     subscriptions, and the feed of job:updates
    commands/    what each command does
    server       all of it on a port
"""
