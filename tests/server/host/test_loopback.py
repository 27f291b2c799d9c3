"""Recognition of loopback hosts."""

from millrace.server.host.loopback import is_loopback
from tests.support.tables import table


@table("host", ["localhost", "LOCALHOST", "dev.localhost", "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@table(
    "host",
    ["", "0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "localhost.example", "mylocalhost", "127.0.0.1.example"],
)
def test_other_hosts(host: str) -> None:
    """A name is not resolved: what it means can change."""
    assert not is_loopback(host)
