"""Ports and addresses: which is free, whose it is, and by which names it may be called."""

import socket
import sys
from collections.abc import Iterator

import pytest

from kvchat import cli_listen
from kvchat.cli_listen import is_loopback, listening, names_of, url_from_outside, url_of
from kvchat.errors import ServeError


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_any_free_port() -> None:
    with listening("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        socket.create_connection((host, port)).close()  # it answers from now on


def test_a_taken_port_that_was_asked_for_is_an_error(taken: int) -> None:
    with pytest.raises(ServeError) as error, listening("127.0.0.1", taken):
        pass
    assert error.value.code == "port_taken"
    assert error.value.facts == {"port": taken}


def test_the_default_port_moves_on(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_listen, "DEFAULT_PORT", taken)
    with listening("127.0.0.1", None) as listener:
        assert taken < listener.getsockname()[1] < taken + 100


@pytest.mark.skipif(sys.platform == "win32", reason="Windows waits before it says no")
def test_a_port_is_free_again_at_once() -> None:
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # our side closes first: the port waits in TIME_WAIT
    with listening("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_no_such_port(port: int) -> None:
    with pytest.raises(ServeError) as error, listening("127.0.0.1", port):
        pass
    assert error.value.code == "port_range"


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_that_is_not_this_machine(host: str) -> None:
    """192.0.2.0/24 is set aside for documentation: it is nobody's address, and is not asked."""
    with pytest.raises(ServeError) as error, listening(host, 0):
        pass
    assert error.value.code == "host_unusable"


@pytest.mark.parametrize(("asked", "code"), [(80, "port_denied"), (None, None)])
def test_a_port_that_the_system_keeps(
    asked: int | None, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ports below 1024, or a range that Windows set aside; the default port steps over it."""
    bound = cli_listen._bound

    def kept(host: str, port: int) -> socket.socket | None:
        if port in (80, 7860):
            raise PermissionError
        return bound(host, 0)

    monkeypatch.setattr(cli_listen, "_bound", kept)
    if code is None:
        with listening("127.0.0.1", asked) as listener:
            assert listener.getsockname()[1]
    else:
        with pytest.raises(ServeError) as error, listening("127.0.0.1", asked):
            pass
        assert error.value.code == code


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("192.168.0.7", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8"),
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("::", "http://127.0.0.1:8"),
        ("::1", "http://[::1]:8"),
        ("desk.local", "http://desk.local:8"),
    ],
)
def test_url_of(host: str, url: str) -> None:
    assert url_of(host, 8) == url


def test_names_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.0.1", "192.168.0.7", "::1", "fe80::2"]
    monkeypatch.setattr(cli_listen, "_own_addresses", lambda: addresses)
    monkeypatch.setattr(socket, "gethostname", lambda: "desk")
    local = {"127.0.0.1", "localhost", "[::1]"}
    assert set(names_of("localhost")) == local
    assert set(names_of("192.168.0.7")) == local | {"192.168.0.7"}
    everywhere = {"desk", "desk.local", "192.168.0.7", "[fe80::2]"}
    assert set(names_of("0.0.0.0")) == local | everywhere
    assert url_from_outside("0.0.0.0", 8) == "http://192.168.0.7:8"
    assert url_from_outside("192.168.0.7", 8) == "http://192.168.0.7:8"


def test_own_addresses_carry_no_zone() -> None:
    found = cli_listen._own_addresses()
    assert "127.0.0.1" in found
    assert not any("%" in address for address in found)
