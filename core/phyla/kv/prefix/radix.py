"""A radix tree over token ids that finds who can serve the longest prefix of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from phyla.kv.prefix.packed import ID_BYTES, first_tokens, num_common, num_tokens

EntryT = TypeVar("EntryT")


class _Node(Generic[EntryT]):
    """The tokens of `edge`, after those of its ancestors."""

    __slots__ = ("anywhere", "children", "depth", "edge", "marked", "parent")

    def __init__(self, edge: bytes, depth: int, parent: _Node[EntryT] | None) -> None:
        self.edge = edge
        self.depth = depth
        """Tokens from the root to the end of this edge."""

        self.parent = parent
        self.children: dict[bytes, _Node[EntryT]] = {}
        self.anywhere: dict[EntryT, None] = {}
        """Entries that can serve any length ending within this edge, the latest last."""

        self.marked: dict[EntryT, None] = {}
        """Entries that can serve exactly `depth` tokens, the latest last."""


class RadixTree(Generic[EntryT]):
    """Entries by their tokens. An entry serves every length from its floor on, and single marked lengths below it."""

    def __init__(self) -> None:
        self._root: _Node[EntryT] = _Node(b"", 0, None)

    @property
    def is_empty(self) -> bool:
        return not self._root.children

    def insert(self, key: bytes, entry: EntryT, floor: int, marks: Iterable[int]) -> None:
        """Add an entry that can serve any length in [floor, len(key)], and those in `marks`."""
        marked = {*marks, floor, num_tokens(key)} - {0}
        for depth in sorted(marked):
            self._node_at(first_tokens(key, depth)).marked[entry] = None
        for node in self._path(key):
            start = node.depth - num_tokens(node.edge)
            if start >= floor:
                node.anywhere[entry] = None

    def remove(self, key: bytes, entry: EntryT) -> None:
        """Forget an entry; nodes that served it alone disappear."""
        for node in reversed(self._path(key)):
            node.anywhere.pop(entry, None)
            node.marked.pop(entry, None)
            self._tidy(node)

    def num_matched(self, key: bytes) -> int:
        """Tokens of the key that some entry begins with, servable or not."""
        depth, _, _ = self._descend(key)
        return depth

    def candidates(self, key: bytes) -> Iterator[tuple[int, list[EntryT]]]:
        """Lengths that entries can serve of this key, longest first, each with its entries, the latest first."""
        depth, node, is_whole = self._descend(key)
        if not is_whole:
            if node.anywhere:
                yield depth, list(reversed(node.anywhere))
            assert node.parent is not None
            node = node.parent
        while node.parent is not None:
            if node.marked or node.anywhere:
                yield node.depth, list(reversed({**node.anywhere, **node.marked}))
            node = node.parent

    def ending_before(self, key: bytes) -> list[tuple[int, EntryT]]:
        """Every (length, entry) marked at a proper prefix of the key."""
        shorter = [node for node in self._path(key) if node.depth < num_tokens(key)]
        return [(node.depth, entry) for node in shorter for entry in node.marked]

    def _descend(self, key: bytes) -> tuple[int, _Node[EntryT], bool]:
        """Matched tokens, the node they end in, and whether they reach its end."""
        node, position = self._root, 0
        while True:
            child = node.children.get(key[position : position + ID_BYTES])
            if child is None:
                return position // ID_BYTES, node, True
            end = position + len(child.edge)
            if key[position:end] != child.edge:
                shared = num_common(key[position:end], child.edge)
                return position // ID_BYTES + shared, child, False
            node, position = child, end

    def _path(self, key: bytes) -> list[_Node[EntryT]]:
        """Nodes, root excluded, whose tokens the key begins with."""
        _, node, is_whole = self._descend(key)
        found = []
        if not is_whole:
            assert node.parent is not None
            node = node.parent
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def _node_at(self, key: bytes) -> _Node[EntryT]:
        """The node that ends where the key does, made or split off when there is none."""
        depth, node, is_whole = self._descend(key)
        if not is_whole:
            node = self._split(node, depth)
        if node.depth == num_tokens(key):
            return node
        edge = key[node.depth * ID_BYTES :]
        leaf: _Node[EntryT] = _Node(edge, num_tokens(key), node)
        node.children[edge[:ID_BYTES]] = leaf
        return leaf

    def _split(self, node: _Node[EntryT], depth: int) -> _Node[EntryT]:
        """Cut an edge in two; the new upper part ends at `depth`."""
        assert node.parent is not None
        cut = len(node.edge) - (node.depth - depth) * ID_BYTES
        upper: _Node[EntryT] = _Node(node.edge[:cut], depth, node.parent)
        # Whoever serves any length of the whole edge has its floor above it, so above the upper part as well.
        upper.anywhere = dict(node.anywhere)
        node.parent.children[upper.edge[:ID_BYTES]] = upper
        node.edge, node.parent = node.edge[cut:], upper
        upper.children[node.edge[:ID_BYTES]] = node
        return upper

    def _tidy(self, node: _Node[EntryT]) -> None:
        parent = node.parent
        assert parent is not None
        if node.marked:
            return
        if not node.children:
            del parent.children[node.edge[:ID_BYTES]]
        elif len(node.children) == 1:
            # Nothing ends here, so whoever comes through goes on into the only child.
            (child,) = node.children.values()
            child.edge, child.parent = node.edge + child.edge, parent
            parent.children[child.edge[:ID_BYTES]] = child
