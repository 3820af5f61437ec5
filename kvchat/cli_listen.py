"""The address to listen on: which port is free, and by which names this machine may be called.

Knows nothing of what is served there.
"""

import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvchat.errors import ServeError

DEFAULT_PORT = 7860
_PORTS_TRIED = 100
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
# A refusal on this machine comes at once, but Windows takes two seconds to pass it on.
_ANSWER_TIMEOUT_S = 0.3


def check_port(port: int | None) -> None:
    """Raises ServeError for a number that no port has."""
    if port is not None and not 0 <= port <= 65535:
        raise ServeError("port_range", port=port)


@contextmanager
def listening(host: str, port: int | None) -> Iterator[socket.socket]:
    """The socket, bound before anything else is begun. A port that was not asked for may move."""
    check_port(port)
    first = DEFAULT_PORT if port is None else port
    for number in range(first, first + (_PORTS_TRIED if port is None else 1)):
        try:
            listener = _bound(host, number)
        except PermissionError:
            if port is not None:
                raise ServeError("port_denied", port=port) from None
            continue
        if listener is not None:
            with listener:
                yield listener
            return
    raise ServeError("port_taken", port=first)


def _bound(host: str, port: int) -> socket.socket | None:
    """None if the port is taken. Raises ServeError for a host that is not this machine's, and

    PermissionError for a port that the system keeps.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServeError("host_unusable", host=host, why=error.strerror or error) from None
    if port and is_loopback(host) and _answers(family, address):
        return None
    listener = socket.socket(family, kind)
    # Windows would let two programs share a port under this flag; elsewhere it skips TIME_WAIT.
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except PermissionError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise ServeError("host_unusable", host=host, why=error.strerror or error) from None
    return listener


def _answers(family: int, address: Any) -> bool:
    """Some systems let two programs bind one port, one of them to all addresses."""
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(_ANSWER_TIMEOUT_S)
        return caller.connect_ex(address) == 0


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def url_of(host: str, port: int) -> str:
    """As a browser on this machine calls it."""
    return f"http://{'127.0.0.1' if _is_everywhere(host) else _as_name(host)}:{port}"


def url_from_outside(host: str, port: int) -> str:
    """As a browser on another machine calls it, by the first address that is not loopback."""
    names = [name for name in _own_addresses() if not is_loopback(name)]
    return url_of(names[0] if _is_everywhere(host) and names else host, port)


def names_of(host: str) -> tuple[str, ...]:
    """What may stand in the Host header: local names, and beyond loopback those of the network."""
    if is_loopback(host):
        return _LOCAL_NAMES
    if not _is_everywhere(host):
        return (*_LOCAL_NAMES, _as_name(host))
    own = socket.gethostname()
    return (*_LOCAL_NAMES, own, f"{own}.local", *map(_as_name, _own_addresses()))


def _own_addresses() -> list[str]:
    """IPv4 before IPv6, without the zone that link-local addresses carry."""
    import psutil

    cards = [card for cards in psutil.net_if_addrs().values() for card in cards]
    return [
        card.address.partition("%")[0]
        for family in (socket.AF_INET, socket.AF_INET6)
        for card in cards
        if card.family == family
    ]


def _is_everywhere(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def _as_name(host: str) -> str:
    return f"[{host}]" if ":" in host else host
