"""Recognition of loopback hosts."""

import pytest

from millrace.server.host.loopback import is_loopback


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "dev.localhost", "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"]
)
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "localhost.example", "mylocalhost", "127.0.0.1.example"],
)
def test_other_hosts(host: str) -> None:
    """A name is not resolved: what it means can change."""
    assert not is_loopback(host)
