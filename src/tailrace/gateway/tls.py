"""TLS on both sides: contexts from files, with errors that name the file; certificates read anew without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import EngineTlsConfig, TlsConfig
from tailrace.model.errors import ConfigError

HANDSHAKE_S = 10.0
"""A client that does not finish its handshake by then is dropped."""
SHUTDOWN_S = 2.0
"""How long a peer has to answer our close_notify before the socket is closed all the same."""
_ALPN = ["http/1.1"]


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """TLS 1.2 and later, HTTP/1.1 by ALPN; client certificates are demanded where `client_ca` is set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_ALPN)
    _load_chain(context, config.cert, config.key, "tls")
    if config.client_ca is not None:
        _load_authorities(context, config.client_ca, "tls.client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def renew(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Read certificate and key again: handshakes from now on use them, connections that stand are not touched.

    Raises `ConfigError` and leaves the context as it is where the files do not fit.
    """
    server_context(config)
    _load_chain(context, config.cert, config.key, "tls")


def tls_shape(config: Config) -> tuple[bool, str | None]:
    """What of `tls` is fixed while serving: whether there is any, and whose client certificates count."""
    return config.tls is not None, config.tls.client_ca if config.tls is not None else None


def engine_context(config: EngineTlsConfig | None, place: str = "backends[0].tls") -> ssl.SSLContext:
    """The client side: the system's authorities or those of `ca`, and our own certificate where one is set."""
    config = config or EngineTlsConfig()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is not None:
        _load_authorities(context, config.ca, f"{place}.ca")
    else:
        context.load_default_certs()
    if config.cert is not None:
        _load_chain(context, config.cert, config.key, place)
    return context


def _load_chain(context: ssl.SSLContext, cert: str, key: str | None, place: str) -> None:
    _readable(cert, f"{place}.cert")
    if key is not None:
        _readable(key, f"{place}.key")
    try:
        # An encrypted key would ask for its passphrase on the terminal; there is nobody to answer.
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except _Encrypted:
        raise ConfigError(
            f"the key {key or cert!r} is encrypted",
            place=f"{place}.key",
            remedy="Store it without a passphrase, readable by this user alone.",
        ) from None
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        if reason == "KEY_VALUES_MISMATCH":
            what = f"the key {key or cert!r} does not belong to the certificate {cert!r}"
        else:
            what = f"{cert!r}{f' with {key!r}' if key else ''} is no certificate and key in PEM form ({reason})"
        raise ConfigError(what, place=place, remedy="Give the certificate's chain and its own key as PEM.") from None


def _load_authorities(context: ssl.SSLContext, ca: str, place: str) -> None:
    _readable(ca, place)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"{ca!r} holds no certificate in PEM form ({reason})", place=place, remedy="Give a PEM file of authorities."
        ) from None


def _readable(file: str, place: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{file!r} cannot be read: {error.strerror or error}", place=place, remedy="Give the path of a PEM file."
        ) from None


class _Encrypted(Exception):  # noqa: N818  (never leaves this file)
    pass


def _no_passphrase() -> str:
    raise _Encrypted
