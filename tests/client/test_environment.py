"""`MILLRACE_ADDRESS`, `MILLRACE_TOKEN` and `MILLRACE_TOKEN_FILE`: where a program connects that says nothing of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace
from millrace.cli.main import main
from millrace.client.options import ClientOptions, chosen_addresses, chosen_options
from millrace.client.testing import SETTINGS_SMALL, TestServer, server
from millrace.model.address import Address, Addresses

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestServer]:
    """A server that asks for a token."""
    with server(settings={**SETTINGS_SMALL, "MILLRACE_FRONT_TOKEN": TOKEN}) as running:
        yield running


@pytest.fixture
def environment(guarded: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that names this server and its token."""
    monkeypatch.setenv("MILLRACE_ADDRESS", guarded.address)
    monkeypatch.setenv("MILLRACE_TOKEN", TOKEN)


@pytest.mark.asyncio
async def test_a_client_finds_its_server_in_the_environment(environment: None) -> None:
    async with millrace.connect() as client:
        await client.create_stream("shop/by-asyncio")
        async with client.writer("shop/by-asyncio") as writer:
            await writer.write(b"hello")
        async with client.reader("shop/by-asyncio", end=millrace.TAIL) as reader:
            assert [event.value async for event in reader] == [b"hello"]


def test_a_client_for_threads_does_so_too(environment: None, guarded: TestServer) -> None:
    with millrace.blocking.connect() as client:
        assert client.create_stream("shop/by-threads")
    with millrace.blocking.connect(guarded.address, options=ClientOptions(request_timeout_s=5)) as client:
        assert not client.create_stream("shop/by-threads")


def test_the_command_line_does_so_too(environment: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "create", "shop/by-command"]) == 0
    assert main(["stream", "list"]) == 0
    assert "shop/by-command" in capsys.readouterr().out


def test_what_a_program_says_comes_before_the_environment(
    environment: None, guarded: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_ADDRESS", "127.0.0.1:1")
    assert main(["stream", "list", "--address", guarded.address]) == 0
    with pytest.raises(millrace.AuthenticationError):
        millrace.blocking.connect(guarded.address, token="wrong")
    with pytest.raises(millrace.AuthenticationError):
        millrace.blocking.connect(guarded.address, token="")
    with pytest.raises(millrace.AuthenticationError):
        millrace.blocking.connect(guarded.address, options=ClientOptions(token="wrong"))


def test_a_client_reads_its_token_from_the_file_in_the_environment(
    guarded: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("MILLRACE_ADDRESS", guarded.address)
    monkeypatch.setenv("MILLRACE_TOKEN", "")  # as a container does that sets what it has not
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(path))

    with millrace.blocking.connect() as client:
        assert client.ping() >= 0
    assert main(["stream", "list"]) == 0
    with pytest.raises(millrace.AuthenticationError):
        millrace.blocking.connect(token="")


@pytest.mark.parametrize(
    ("content", "token", "problem"),
    [
        (None, "", "PATH: cannot read the token file: No such file or directory"),
        (b"\n", "", "PATH: cannot use the token file: the file holds no token"),
        (b"a\nb\n", "", "PATH: cannot use the token file: the file has several lines"),
        ("a\n".encode("utf-16"), "", "PATH: cannot use the token file: the token is not UTF-8"),
        (b"a\n", TOKEN, "must not be set together with MILLRACE_TOKEN"),
    ],
)
def test_a_wrong_token_file_in_the_environment_is_named(
    content: bytes | None,
    token: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("MILLRACE_TOKEN", token)
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(path))

    with pytest.raises(millrace.InvalidArgumentError) as raised:
        chosen_options(None, token=None, tls=None)
    assert str(raised.value).startswith(f"MILLRACE_TOKEN_FILE: {problem.replace('PATH', str(path))}")
    assert main(["stream", "list"]) == 2
    assert f"MILLRACE_TOKEN_FILE: {problem.replace('PATH', str(path))}" in capsys.readouterr().err


def test_a_token_of_the_program_comes_before_a_wrong_file(guarded: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", "nowhere")
    with millrace.blocking.connect(guarded.address, token=TOKEN) as client:
        assert client.ping() >= 0


def test_a_wrong_address_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_ADDRESS", "db:port")
    with pytest.raises(millrace.InvalidArgumentError, match=r"MILLRACE_ADDRESS: 'db:port' .* write HOST:PORT"):
        millrace.blocking.connect()
    assert main(["stream", "list"]) == 2
    assert "MILLRACE_ADDRESS: 'db:port'" in capsys.readouterr().err


def test_without_an_environment_it_is_the_server_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MILLRACE_ADDRESS", "MILLRACE_TOKEN", "MILLRACE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert chosen_addresses(None) == Addresses((Address("127.0.0.1", 9240),))
    assert chosen_options(None, token=None, tls=None) == ClientOptions()
