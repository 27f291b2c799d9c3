from millrace.server.host.addresses import address_of
from tests.support.tables import table


@table(
    ("peername", "address"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (None, ""),
        ("", ""),
    ],
)
def test_the_address_is_that_of_a_host(peername: object, address: str) -> None:
    assert address_of(peername) == address
