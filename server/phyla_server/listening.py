"""The socket: probed and bound before anything heavy is loaded, so that a taken port costs no minute of loading."""

from __future__ import annotations

import json
import os
import socket
import stat
import urllib.error
import urllib.request
from ipaddress import ip_address
from pathlib import Path

from phyla.errors import AddressTaken, UsageError

from phyla_server.keys import KeyRing
from phyla_server.settings import ServerSettings

PROBE_SECONDS = 1.5
MAX_PROBE_BYTES = 1 << 20
BACKLOG = 2048


def open_listener(settings: ServerSettings, keys: KeyRing) -> socket.socket:
    """A bound socket that doesn't listen yet.

    Raises:
        UsageError: the bind isn't safe, or the address isn't one of this machine's.
        AddressTaken: something listens there already.
    """
    if settings.unix is not None:
        return _bind_unix(Path(settings.unix))
    require_safe_bind(settings, keys)
    if settings.port:
        served = probe(settings.port)
        if served:
            # The first is the one that is served; what else the machine has comes after it.
            raise AddressTaken(
                f"Port {settings.port} is already serving {served[0]}. Use that server, stop it, or choose "
                f"another port with --port."
            )
    return _bind_tcp(settings.host, settings.port)


def require_safe_bind(settings: ServerSettings, keys: KeyRing) -> None:
    """Refuse to be reachable from other machines without a key."""
    if settings.insecure or not keys.is_empty or is_loopback(settings.host):
        return
    raise UsageError(
        f"--host {settings.host} is reachable from other machines and no key is set. Set one with --api-key-file "
        f"or PHYLA_SERVER__API_KEY, or accept the risk with --insecure."
    )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def probe(port: int) -> list[str]:
    """Ids of the models that something on this port already serves; empty if nothing there speaks our language."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://localhost:{port}/v1/models", timeout=PROBE_SECONDS) as answer:
            listed = json.loads(answer.read(MAX_PROBE_BYTES))
    except (OSError, ValueError):
        return []
    models = listed.get("data") if isinstance(listed, dict) else None
    entries = models if isinstance(models, list) else []
    return [str(one["id"])[:128] for one in entries if isinstance(one, dict) and "id" in one]


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"--host {host} is no address of this machine: {error.strerror}.") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Listening at once makes a second server fail here and now; connections wait in the backlog until we are ready.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"Can't listen on {host}:{port}: {error.strerror}. Choose another port with --port."
        ) from error
    return listener


def _bind_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody but the owner may connect, from the first moment on.
    old_mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"Can't listen on the unix socket: {error.strerror}. Choose another --unix path.") from error
    finally:
        os.umask(old_mask)
    return listener


def _remove_stale(path: Path) -> None:
    """Unlink a socket that nobody answers on; anything else in the way stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"Can't use the --unix path: {error.strerror}.") from error
    if not stat.S_ISSOCK(mode):
        raise UsageError("The --unix path exists and is no socket. Choose another.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(PROBE_SECONDS)
        try:
            attempt.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise AddressTaken("Another server already listens on the --unix path. Stop it or choose another path.")
