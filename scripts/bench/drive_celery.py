"""Celery on Redis, acknowledging late, without a result backend. Workers: two processes with the solo pool.

The variant `defaults` changes no setting: Celery acknowledges before it runs a task.
"""

from __future__ import annotations

from celery import Celery

from bench import gear

app = Celery("bench", broker=gear.redis_url())
if gear.variant() != "defaults":
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )


@app.task(name="bench.noop")
def noop(number: int) -> None:
    gear.work(number)


if __name__ == "__main__":
    gear.drive(noop.delay)
