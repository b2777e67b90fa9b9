"""The terminal front: `farro top`, a screen on which queues, workers, jobs, logs and swarms are watched and steered.

No rules of jobs live here, and no store is called on the thread that draws: what is seen is gathered in looking, what
is done is one operation each (acting).
"""
