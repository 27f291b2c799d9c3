"""The server of S3 of a benchmark: one child process reaches it as a measurement does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.s3_gateway import Gateway, s3_gateway

_PROGRAM: Final = """
import asyncio, sys
from benchmarks.far_store import clear, connect

async def run():
    store = await connect(sys.argv[1])
    await store.create("a", [b"content"])
    print((await store.get("a")).content.decode())
    await clear(store)
    await store.close()

asyncio.run(run())
"""


def test_every_measurement_has_a_prefix_of_its_own() -> None:
    gateway = Gateway("moto", 9)
    assert gateway.new_url() != gateway.new_url()
    assert gateway.environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9"


@pytest.mark.slow
def test_a_child_process_reaches_the_gateway(tmp_path: Path) -> None:
    with s3_gateway(tmp_path, lifetime_s=300.0) as gateway:
        printed = subprocess.run(
            [sys.executable, "-c", _PROGRAM, gateway.new_url()],
            env={**os.environ, **gateway.environment},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    assert printed == "content\n"
    assert list(tmp_path.iterdir()) == []
