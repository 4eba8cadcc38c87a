"""Certificates for TLS and keys of nodes, for a federation without a certificate authority of its own."""

import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jlibo import files
from jlibo.checks import fail


class Certificates(NamedTuple):
    """Paths of the files that a SuperLink needs for TLS. Nodes need `authority` alone."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, hosts: Sequence[str], *, num_days: int = 365) -> Certificates:
    """Make a certificate authority and a server's certificate in a folder, and return their paths.

    The authority's private key is not stored: new certificates need a new authority.

    **Arguments:**

    - `folder`: where `authority.pem`, `server.pem` and `server.key` are written. The key can be read by its
      owner alone.
    - `hosts`: the names and IP addresses by which nodes reach the server.
    - `num_days`: for how long the certificates are valid.

    **Raises:** `ValueError` if there are no hosts or no days.
    """
    if not hosts or isinstance(hosts, str):
        fail("hosts", "a list of names or IP addresses", hosts)
    if num_days < 1:
        fail("num_days", "at least 1", num_days)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name, server_name = (_name(f"jlibo federation {part}") for part in ("authority", "server"))
    usages = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    ) | {"encipher_only": False, "decipher_only": False}
    authority = (
        _builder(authority_name, authority_name, authority_key, num_days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usages), critical=True
        )
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _builder(server_name, authority_name, server_key, num_days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usages),
            critical=True,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    pem = serialization.Encoding.PEM
    _write(made.authority, authority.public_bytes(pem), 0o644)
    _write(made.certificate, server.public_bytes(pem), 0o644)
    private = serialization.PrivateFormat.PKCS8
    _write(made.key, server_key.private_bytes(pem, private, serialization.NoEncryption()), 0o600)
    return made


def make_node_key(path: Path) -> Path:
    """Make the key of a node at `path`, as `ssh-keygen -t ecdsa -b 384` does, and return `path`.

    The public key, which the server needs, is written beside it with the suffix `.pub`.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, private, 0o600)
    _write(path.with_name(path.name + ".pub"), public + b"\n", 0o644)
    return path


def client_of(public_key: bytes | Path) -> str:
    """Return the name by which a ballot knows a node: the SHA-256 of its public key.

    It stays the same when the node registers anew, or with another SuperLink.

    **Arguments:**

    - `public_key`: the key as Flower gives it to the server, or the path of the file that ends in `.pub`.

    **Raises:** `ValueError` if there is no key, so that clients cannot be told apart.
    """
    if isinstance(public_key, Path):
        public_key = serialization.load_ssh_public_key(public_key.read_bytes()).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    if not public_key:
        fail("public_key", "the key of a node; start the SuperLink with --enable-supernode-auth", public_key)
    return hashlib.sha256(public_key).hexdigest()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, num_days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks of other machines may be behind
        .not_valid_after(now + datetime.timedelta(days=num_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    files.write_atomically(path, lambda file: file.write(content), mode=mode)
