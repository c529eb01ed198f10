"""Certificates for tests, made with the `openssl` program: an authority, and leaves that it has signed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@dataclass(frozen=True)
class Pair:
    cert: str
    key: str


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "Test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert = str(folder / "ca.pem")
        self._key = str(folder / "ca.key")
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.cert),
        )  # fmt: skip

    def issue(self, name: str, *names: str) -> Pair:
        """A leaf for the subject alternative `names` (`DNS:a`, `IP:127.0.0.1`)."""
        base = self.folder / name
        request, cert, key = f"{base}.csr", f"{base}.pem", f"{base}.key"
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={','.join(names or ('IP:127.0.0.1', 'IP:::1'))}\n")
        openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", "2", "-extfile", f"{base}.ext", "-out", cert),
        )
        return Pair(cert, key)
