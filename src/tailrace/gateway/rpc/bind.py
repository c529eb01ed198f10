"""Why gRPC could not bind, which it does not say: the kernel does."""

from __future__ import annotations

import socket

from tailrace.gateway.entrance import bind_error
from tailrace.model.errors import InputError


def address_text(host: str, port: int) -> str:
    """As gRPC wants it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unbound(host: str, port: int, key: str) -> InputError:
    """The error for an address that gRPC has refused to bind; `key` is the configuration's."""
    text = address_text(host, port)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        return bind_error(error, text, key)
    return InputError("cannot listen there", place=text, remedy=f"Choose another with {key}: HOST:PORT.")
