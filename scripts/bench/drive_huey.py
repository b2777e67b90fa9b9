"""huey: file, SQLite and Redis storages. Workers: one consumer with two worker processes."""

from __future__ import annotations

from typing import Any

from bench import gear


def make() -> Any:
    from huey import FileHuey, RedisHuey, SqliteHuey

    if gear.variant() == "file":
        return FileHuey("bench", path=f"{gear.home()}/huey")
    if gear.variant() == "sqlite":
        return SqliteHuey("bench", filename=f"{gear.home()}/huey.db")
    if gear.variant() == "sqlite-nosync":
        return SqliteHuey("bench", filename=f"{gear.home()}/huey.db", fsync=False)
    return RedisHuey("bench", url=gear.redis_url())


huey = make()


@huey.task()
def noop(number: int) -> None:
    gear.work(number)


if __name__ == "__main__":
    from bench.drive_huey import noop as queued  # under the name by which the consumer knows it

    gear.drive(queued)
