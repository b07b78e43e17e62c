"""An authority and certificates for tests: made in memory in milliseconds (elliptic curves), written as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority. `ca` is the path of its certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), -DAY, 10 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only"), False,
        )  # fmt: skip
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.serials: dict[str, int] = {}

    def issue(
        self,
        name: str,
        *,
        file: str = "",
        hosts: tuple[str, ...] = ("localhost",),
        since: datetime.timedelta = -DAY,
        until: datetime.timedelta = DAY,
    ) -> tuple[Path, Path]:
        """A certificate for a common name and its key. Returns the paths of both files, which replace older ones of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests")])
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if "localhost" in hosts else []
        builder = _builder(subject, self._name, key.public_key(), since, until)
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, hosts), *addresses]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.serials[file or name] = certificate.serial_number
        pem, private = self._directory / f"{file or name}.pem", self._directory / f"{file or name}.key"
        _replace(pem, certificate.public_bytes(serialization.Encoding.PEM))
        _replace(
            private,
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        )
        return pem, private

    def revoke(self, path: Path, *names: str) -> None:
        """Write the list of revoked certificates."""
        builder = x509.CertificateRevocationListBuilder(self._name, NOW - DAY, NOW + DAY)
        for name in names:
            revoked = x509.RevokedCertificateBuilder(serial_number=self.serials[name], revocation_date=NOW - DAY).build()
            builder = builder.add_revoked_certificate(revoked)
        _replace(path, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: datetime.timedelta, until: datetime.timedelta
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    return builder.not_valid_before(NOW + since).not_valid_after(NOW + until)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
