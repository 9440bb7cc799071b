"""API keys: who may call, and which cache namespace is theirs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phyla.errors import SettingsError

from phyla_server.settings import ServerSettings

MIN_KEY_LENGTH = 8


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    owner: str = ""
    """Cache namespace; empty where no keys are configured. A digest: it names the key without being one."""

    is_admin: bool = False
    has_key: bool = False


class KeyRing:
    """The configured keys, kept as digests."""

    def __init__(self, user_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._users = frozenset(map(_digest, user_keys))
        self._admins = frozenset(map(_digest, admin_keys))

    @classmethod
    def from_settings(cls, settings: ServerSettings) -> KeyRing:
        """Keys of all sources.

        Raises:
            SettingsError: a key file that can't be read, holds no key, or a key that is too short.
        """
        users = _listed(settings.api_key, settings.api_key_file)
        return cls(users, _listed(settings.admin_key, settings.admin_key_file))

    @property
    def is_empty(self) -> bool:
        return not self._users and not self._admins

    def caller(self, key: str | None) -> Caller | None:
        """Who holds this key; None for an unknown or missing one."""
        if key is None:
            return None
        digest = _digest(key)
        if _holds(self._admins, digest):
            return Caller(owner=digest[:32], is_admin=True, has_key=True)
        return Caller(owner=digest[:32], has_key=True) if _holds(self._users, digest) else None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).hexdigest()


def _holds(digests: frozenset[str], digest: str) -> bool:
    # Every one is compared, each in constant time: how long this takes tells nothing about the keys.
    return sum(hmac.compare_digest(one, digest) for one in digests) > 0


def _listed(key: str | None, file: str | None) -> list[str]:
    keys = [key] if key is not None else []
    if file is not None:
        found = _read_file(file)
        if not found:
            raise SettingsError(f"Key file '{file}' holds no key. Write one key a line.")
        keys += found
    if any(len(one) < MIN_KEY_LENGTH for one in keys):
        raise SettingsError(f"A key is shorter than {MIN_KEY_LENGTH} characters. Use a longer one.")
    return keys


def _read_file(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Key file '{file}' can't be read: {error}.") from error
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]
