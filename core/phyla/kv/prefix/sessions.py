"""Which prefix a session used last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.kv.prefix.entry import Entry
    from phyla.kv.prefix.namespace import PrefixNamespace

SessionKey = tuple[str, str]
"""Owner and session id: one key's sessions are nobody else's."""


class SessionLinks:
    """Sessions and the last entry each of them published or used, per namespace. Steers retention, never results."""

    def __init__(self) -> None:
        self._linked: dict[SessionKey, dict[PrefixNamespace, Entry]] = {}

    def link(self, session_id: str, entry: Entry) -> None:
        """The session is at this entry now."""
        key = (entry.namespace.owner, session_id)
        linked = self._linked.setdefault(key, {})
        previous = linked.get(entry.namespace)
        if previous is not None:
            previous.sessions.discard(key)
        linked[entry.namespace] = entry
        entry.sessions.add(key)

    def entry_of(self, session_id: str, namespace: PrefixNamespace) -> Entry | None:
        return self._linked.get((namespace.owner, session_id), {}).get(namespace)

    def follow(self, old: Entry, new: Entry) -> None:
        """Sessions of an entry that another one replaces."""
        for _, session_id in list(old.sessions):
            self.link(session_id, new)

    def drop(self, entry: Entry) -> None:
        """The entry is gone."""
        for key in entry.sessions:
            linked = self._linked[key]
            del linked[entry.namespace]
            if not linked:
                del self._linked[key]
        entry.sessions.clear()

    def close(self, session_id: str, owner: str) -> bool:
        """Forget a session; whether it was known."""
        linked = self._linked.pop((owner, session_id), None)
        for entry in (linked or {}).values():
            entry.sessions.discard((owner, session_id))
        return linked is not None
