"""A server with its history in a real object store: both are killed, and nothing that was acknowledged is missing."""

import random
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import server
from millrace.server.offline.findings import Verification
from millrace.server.offline.remote_history import remote_history
from millrace.server.offline.verification import verify_folder
from tests.support.s3 import NO_VERSITYGW, find_versitygw, versitygw_server

ROUNDS_COUNT = 4
BATCHES_COUNT = 30
SEED = 20261123
SETTINGS = {
    "MILLRACE_WAL_FILE_SIZE_BYTES": str(128 << 10),
    "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 << 10),
    "MILLRACE_WAL_HEADROOM_BYTES": str(4 << 10),
    "MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": str(8 << 10),
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.05",
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.1",
    "MILLRACE_CONTAINER_COPY_INTERVAL_S": "0.1",
    "MILLRACE_OBJECTS_ATTEMPT_S": "2",
    "MILLRACE_OBJECTS_PATIENCE_S": "4",
}
"""Chunks, checkpoints and copies all the time, and a log that is used again all the time."""


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_server_and_store_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 92: kill -9 of the server during flushes, and of the gateway while appends continue."""
    program = find_versitygw()
    if program is None:
        pytest.skip(NO_VERSITYGW)
    draws = random.Random(SEED)
    acknowledged: list[bytes] = []
    with versitygw_server(program, tmp_path / "root") as gateway:
        bucket = gateway.make_bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        settings = SETTINGS | bucket.environment | {"MILLRACE_STORE": bucket.url}
        folder = tmp_path / "data"
        folder.mkdir()
        with server(folder, settings=settings) as running:
            for round_number in range(ROUNDS_COUNT):
                with millrace.blocking.connect(running.address) as client:
                    if not round_number:
                        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(1))
                        client.create_stream("shop/orders", config)
                    away_at, back_at = sorted(draws.sample(range(BATCHES_COUNT), 2))
                    with client.writer("shop/orders") as writer:
                        for batch in range(BATCHES_COUNT):
                            if batch == away_at:
                                gateway.kill()
                            if batch == back_at:
                                gateway.start()
                            values = [b"%d-%d-%d " % (round_number, batch, each) * 20 for each in range(20)]
                            writer.write_many(values, key="one").result()
                            acknowledged += values
                    running.kill()
                running.start()
            with millrace.blocking.connect(running.address) as client:
                with client.reader("shop/orders", end=millrace.TAIL) as reader:
                    found = [event.value for event in reader]
        with remote_history(bucket.url) as history:
            verified = Verification.of(verify_folder(folder, history=history))
    assert found == acknowledged
    assert verified.findings == []
    assert verified.chunks > ROUNDS_COUNT
