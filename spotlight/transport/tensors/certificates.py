"""The certificate of a data port or of a page, and how a receiver knows it.

Each process makes its own, and no authority signs it: whoever has an offer has the certificate's
fingerprint, and trusts that one and no other. Its names and dates mean nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from spotlight.errors import UserError, WrongCertificate

_NAME = "spotlight"
_NO_DATES = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, ready to serve."""

    context: ssl.SSLContext
    fingerprint: str
    """SHA-256 of the certificate, as 64 hexadecimal digits."""


def new_certificate() -> Certificate:
    """One that nobody else has; its key never leaves this process."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    first, last = _NO_DATES
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A client that sends looks whether an answer has come, and would take a ticket for one.
    context.num_tickets = 0
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:  # it is read from files alone
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return Certificate(context, _fingerprint(certificate.public_bytes(serialization.Encoding.DER)))


def certificate_in(certificate: tuple[str, Path], key: tuple[str, Path]) -> Certificate:
    """One that somebody has signed, from its file and that of its key, each given with the option
    that named it. Raises `UserError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = f"{certificate[0]} {certificate[1]}, {key[0]} {key[1]}"
    try:
        context.load_cert_chain(certificate[1], key[1], password=lambda: b"")
        text = certificate[1].read_text(encoding="ascii")
        first = text[text.index("-----BEGIN CERTIFICATE") :]
        end = "-----END CERTIFICATE-----"
        der = ssl.PEM_cert_to_DER_cert(first[: first.index(end) + len(end)])
    except (OSError, ValueError) as error:  # that of TLS, too
        raise UserError(
            f"{files}: they cannot be used ({error}); give files in PEM, with a key that has no"
            " password"
        ) from error
    return Certificate(context, _fingerprint(der))


def secured(connected: socket.socket) -> ssl.SSLSocket:
    """The socket with TLS on it, before the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # `shake_hands` looks at it
    return context.wrap_socket(connected, do_handshake_on_connect=False)


def shake_hands(connected: ssl.SSLSocket, fingerprint: str) -> None:
    """Agree on keys with the other side. Raises `WrongCertificate` unless it has the certificate
    with this fingerprint; until then nothing has been sent to it.
    """
    connected.do_handshake()
    found = _fingerprint(connected.getpeercert(binary_form=True) or b"")
    if not hmac.compare_digest(found, fingerprint):
        raise WrongCertificate(
            f"its certificate has the fingerprint {found}, and the offer names {fingerprint}: it is"
            " another process, which gets nothing"
        )


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
