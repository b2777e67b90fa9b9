"""A plan's `input`: a file that came with the job, on the stdin of the first step that reads no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execution.bench import Bench, step
from farro.execution.tools import Call, Tools

pytestmark = pytest.mark.linux

DATA = bytes(range(256)) * 300


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Bench]:
    """An attempt inside a job's folder, which has a payload."""
    (tmp_path / "payload").mkdir()
    (tmp_path / "payload" / "stdin").write_bytes(DATA)
    (tmp_path / "attempts").mkdir()
    bench = Bench(tmp_path / "attempts")
    yield bench
    assert bench.living() == []
    bench.stop.close()


def test_the_first_step_that_reads_no_other_reads_the_input(job: Bench) -> None:
    result = job.run(step(1, "cat"), step(2, "wc", "-c"), step(3, "wc", "-c", input_from_step=1), input="stdin")
    assert result.success
    assert job.bytes_of(1) == DATA
    assert [one.stdout.strip() for one in result.step_results[1:]] == ["0", str(len(DATA))]


def test_a_reader_of_input_may_stop_early(job: Bench) -> None:
    assert job.run(step(1, "head", "-c", "3"), input="stdin").success
    assert job.bytes_of(1) == DATA[:3]


def test_a_function_reads_the_input_too(job: Bench) -> None:
    def count(call: Call) -> None:
        call.stdout.write(b"%d" % len(call.stdin.read()))

    assert job.run(step(1, "go", tool="count"), tools=Tools({"count": count}), input="stdin").success
    assert job.bytes_of(1) == b"%d" % len(DATA)


def test_a_missing_input_is_reported_before_the_first_step_runs(job: Bench) -> None:
    result = job.run(step(1, "touch", "made"), input="other")
    assert not result.success
    assert result.error is not None
    assert (result.error.category, "other" in result.error.message) == ("missing_input", True)
    assert not (job.work / "made").exists()


def test_a_later_attempt_whose_reader_succeeded_goes_on_without_the_file(job: Bench, tmp_path: Path) -> None:
    assert not job.run(step(1, "cat"), step(2, "test", "-e", "later", input_from_step=1), input="stdin").success
    (tmp_path / "payload" / "stdin").unlink()
    (job.work / "later").touch()
    first = str(job.attempt)
    job.attempt = job.folder / "0002"
    job.attempt.mkdir()
    again = job.run(step(1, "cat"), step(2, "test", "-e", "later", input_from_step=1), input="stdin", earlier=(first,))
    assert again.success
