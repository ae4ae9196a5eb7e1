"""The gateway's certificate: its own, signed by an authority of its own, or the user's (RFC 5280).

The first start makes the authority, which signs the gateway's certificate, then and when the machine's names change.
Clients receive the authority's certificate once. Both are valid from the date of this build, since a board without a
clock starts in 1970 or on that date. Both are valid for 20 years, since such a board cannot know when to renew them.
`lamplighter` makes new ones when the files are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lamplighter.engine.client.files import own_problem, read_file
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.disk import Disk

logger = EventLogger(__name__)

# The date of this build, updated with each release: no correct clock shows an earlier time.
BUILT = datetime(2026, 11, 1, tzinfo=UTC)
LIFE = timedelta(days=20 * 365)

AUTHORITY = "authority.pem"
DEVICE = "device.pem"  # each file has a key and its certificate, so that a power cut leaves both or none

_CN_CHARACTERS_MAX = 64  # RFC 5280, appendix A.1, ub-common-name


@dataclass(frozen=True)
class Identity:
    """The TLS identity that the gateway presents to its clients. tls: for both gates; authority: the certificate in PEM
    that clients have to trust, None where the user provides it; fingerprint: SHA-256 of the authority's certificate, or
    of the user's own; names: hosts that it is valid for. begins, ends, file: of the gateway's certificate."""

    tls: ssl.SSLContext
    authority: bytes | None
    fingerprint: str
    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    file: Path


def own_identity(folder: Path, names: Sequence[str], disk: Disk) -> Identity:
    """The identity in a folder; missing parts are made. names: of the settings. Raises ConfigurationError."""
    wanted = list(dict.fromkeys([*machine_names(), *map(_general_name, names)]))
    try:
        authority = _read_pair(folder / AUTHORITY)
        if authority is None:
            authority = _new_authority()
            disk.write_file(folder / AUTHORITY, [authority.pem])
        device = _read_or_none(folder / DEVICE)
        if device is None or not _serves(device.certificate, authority.certificate, wanted):
            device = _new_device(authority, wanted)
            disk.write_file(folder / DEVICE, [device.pem])
            logger.info("certificate created", names=",".join(map(_text, wanted)))
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or folder}: {own_problem(error, folder, 'the keys are stored there')}"
        ) from error
    public = authority.certificate.public_bytes(serialization.Encoding.PEM)
    return Identity(
        _context(folder / DEVICE),
        public,
        fingerprint(authority.certificate),
        tuple(map(_text, wanted)),
        device.certificate.not_valid_before_utc,
        device.certificate.not_valid_after_utc,
        folder / DEVICE,
    )


def check_names(names: Sequence[str]) -> None:
    """Raises ConfigurationError for a name in the settings that no certificate can have."""
    for name in names:
        _general_name(name)


def users_identity(certificate_file: Path, key_file: Path, clock: Clock | None) -> Identity:
    """The user's own certificate and key, in PEM. Raises ConfigurationError when they cannot be used. One that is not
    valid now is logged and used: clients refuse it, and local processes keep working. clock: None to only check whether
    they can be used."""
    try:
        certificates = x509.load_pem_x509_certificates(_content_of("certificate_file", certificate_file))
    except ValueError as error:
        raise ConfigurationError(
            f"security.certificate_file: {certificate_file} has no certificate in PEM ({error}); "
            "it begins with -----BEGIN CERTIFICATE-----"
        ) from error
    own = certificates[0]
    key = _users_key(key_file)
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(encoding, form) != own.public_key().public_bytes(encoding, form):
        raise ConfigurationError(
            f"security.key_file: {key_file} is not the key of the first certificate in {certificate_file}; "
            "the gateway's own certificate comes first, those of its authorities after it"
        )
    if (
        clock is not None
        and clock.trusted()
        and not own.not_valid_before_utc <= clock.wall() <= own.not_valid_after_utc
    ):
        logger.error(
            "certificate is not valid now, clients will refuse it",
            file=certificate_file,
            valid_from=own.not_valid_before_utc.isoformat(),
            valid_to=own.not_valid_after_utc.isoformat(),
        )
    names = _names_of(own)
    if not names:
        raise ConfigurationError(
            f"security.certificate_file: {certificate_file} names no host (subjectAltName); clients would refuse it"
        )
    return Identity(
        _context(certificate_file, key_file),
        None,
        fingerprint(own),
        tuple(map(_text, names)),
        own.not_valid_before_utc,
        own.not_valid_after_utc,
        certificate_file,
    )


def _users_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(_content_of("key_file", path), None)
    except TypeError as error:
        raise ConfigurationError(
            f"security.key_file: {path} is encrypted, and nobody can enter its password at the start; "
            "write it without one: openssl pkey -in FILE -out NEW"
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"security.key_file: {path} has no private key in PEM ({error}); it begins with -----BEGIN PRIVATE KEY-----"
        ) from error
    # Any kind that can sign is accepted; only its public half is used here.
    return key  # type: ignore[return-value]


def _content_of(setting: str, path: Path) -> bytes:
    """The content of a file that the settings name. Raises ConfigurationError."""
    try:
        return read_file(path)
    except OSError as error:
        reason = f"{error.strerror}; name a file in PEM that the gateway may read"
        raise ConfigurationError(f"security.{setting}: {path}: {reason}") from error


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 as openssl prints it: ``AB:CD:...``."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def machine_names() -> list[x509.GeneralName]:
    """The names of the machine: its host name, with and without ``.local``, localhost, and its addresses."""
    name = socket.gethostname()
    found = []
    for one in (
        name,
        name if "." in name else f"{name}.local",
        "localhost",
        "127.0.0.1",
        "::1",
        *interface_addresses(),
    ):
        with contextlib.suppress(ConfigurationError):  # a machine's name need not be a valid host name
            found.append(_general_name(one))
    return list(dict.fromkeys(found))


# --- the pairs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ) + self.certificate.public_bytes(serialization.Encoding.PEM)


def _read_pair(path: Path) -> _Pair | None:
    """The pair in a file, None without the file. Raises ConfigurationError when it cannot be used."""
    try:
        content = read_file(path, follow=False)
    except FileNotFoundError:
        return None
    try:
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("key and certificate do not belong together")
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({error}); restore a copy of it, or remove it and give every client the new ca.pem"
        ) from error
    return _Pair(key, certificate)


def _read_or_none(path: Path) -> _Pair | None:
    """The same for a file that can be made again: None where it cannot be used."""
    try:
        return _read_pair(path)
    except ConfigurationError as error:
        logger.warning("certificate replaced", reason=error)
        return None


def _usage(*, authority: bool) -> x509.KeyUsage:
    """The use of a key: an authority's signs certificates, a device's signs connections."""
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _new_authority() -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A unique name, so that the authorities of several gateways can be told apart.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Lamplighter"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Lamplighter authority {x509.random_serial_number():x}"[:38]),
        ]
    )
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Pair(key, certificate)


def _new_device(authority: _Pair, names: Sequence[x509.GeneralName]) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, socket.gethostname()[:_CN_CHARACTERS_MAX])])
    issuer = authority.key.public_key()
    certificate = (
        _builder(subject, authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _Pair(key, certificate)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BUILT)
        .not_valid_after(BUILT + LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _serves(certificate: x509.Certificate, authority: x509.Certificate, names: Sequence[x509.GeneralName]) -> bool:
    """True if a certificate is signed by the authority and has all the names, of other networks too."""
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # whatever is wrong with it, it is replaced
        return False
    return set(names) <= set(_names_of(certificate))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        if not name or any(sign.isspace() for sign in name):
            raise ValueError("it is not a host name")
        return x509.DNSName(name.encode("idna").decode())
    except ValueError as error:
        raise ConfigurationError(
            f"security.names: {name!r}: {error}; write a host name or an address, such as gateway.example or 192.0.2.7"
        ) from error


def _names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _text(name: x509.GeneralName) -> str:
    return str(name.value)


def _context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer. Raises ConfigurationError when OpenSSL cannot use the files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(f"{certificate}: OpenSSL cannot use it: {error.strerror or error}") from error
    return context


_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def interface_addresses() -> list[str]:
    """The IPv4 address of each interface and its IPv6 ones without link-local ones, in a fixed order."""
    found = {ipaddress.ip_address(address) for address in (*_ipv4(), *_ipv6())}
    shown = [address for address in found if not address.is_link_local and not address.is_loopback]
    return [str(address) for address in sorted(shown, key=lambda address: (address.version, int(address)))]


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            yield socket.inet_ntoa(answer[20:24])


def _ipv6() -> Iterator[str]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:  # no IPv6 here
        return
    for line in lines:
        yield str(ipaddress.IPv6Address(int(line.split()[0], 16)))
