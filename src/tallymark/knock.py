"""Why nobody answers: a look at the broker's door with nothing but a socket.

librdkafka tells a broker that wants TLS from one that is down by a line in its log, and a wrong host name from an
unknown authority not at all.
"""

from __future__ import annotations

import socket
import ssl

from tallymark.cluster import Cluster, Tls

ENCRYPTED = "TLS is spoken there: tls=Tls(...)"
REFUSED = "a certificate of ours is asked for: Tls(cert=..., key=...)"
SILENT = "somebody listens there and does not answer; check that it is Kafka"
CUT = "the connection was cut; check the port, and that TLS is spoken there"
SECONDS = 2.0
ALERT_SECONDS = 0.5


def diagnosis(cluster: Cluster) -> str:
    """What is wrong with the way to the first broker that can be found, and what helps."""
    said = ""
    for host, port in cluster.addresses:
        try:
            with socket.create_connection((host, port), SECONDS) as line:
                return _greet(line, host, cluster)
        except socket.gaierror:
            said = f"the name {host} is not known here; correct it"
        except (OSError, OverflowError):
            said = "nobody listens there; check address and port"
    return said


def _greet(line: socket.socket, host: str, cluster: Cluster) -> str:
    try:
        with _context(cluster.line).wrap_socket(line, server_hostname=host) as secure:
            return _after_handshake(secure, cluster)
    except ssl.SSLCertVerificationError as error:
        if "match" in error.verify_message:
            return f"the certificate is not for {host}: use the name it has, or Tls(verify_hostname=False)"
        return f"the certificate is not trusted ({error.verify_message}): name its authority with Tls(ca=...)"
    except OSError as error:
        if "ALERT" in (getattr(error, "reason", None) or ""):
            return REFUSED if cluster.line else ENCRYPTED
        return CUT if cluster.line else SILENT


def _after_handshake(secure: ssl.SSLSocket, cluster: Cluster) -> str:
    if cluster.line is None:
        return ENCRYPTED
    secure.settimeout(ALERT_SECONDS)
    try:
        secure.recv(1)
    except ssl.SSLError:
        return REFUSED
    except OSError:
        pass
    return "check user and password" if cluster.security else "a login may be asked for: security=Sasl(...)"


def _context(tls: Tls | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca if tls else None)
    context.check_hostname = bool(tls and tls.verify_hostname)
    context.verify_mode = ssl.CERT_REQUIRED if tls else ssl.CERT_NONE
    if tls and tls.cert:
        # An empty password, or OpenSSL would ask the terminal for one.
        context.load_cert_chain(tls.cert, tls.key, tls.key_password or "")
    return context
