"""What mlx-lm's caches can do, by class: copied, cut back, laid flat. A class that isn't here is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache
from phyla.errors import LayoutError, UnsupportedModel


@dataclass(frozen=True)
class Ability:
    """What one class can do."""

    forgets: bool
    """Whether earlier lengths are ever lost."""

    can_give_back: Callable[[Any, int], bool]
    """`(cache, n)`: whether its last n tokens can be taken back now, with nothing missing before them. Asked only of
    one that has seen every token of its row."""

    num_stored: Callable[[Any], int] | None = None
    """Columns of its keys and values that hold tokens; None where it has no such columns."""


ABILITIES: Mapping[type, Ability] = {
    KVCache: Ability(False, lambda cache, count: True, lambda cache: cache.offset),
    # Until it is full it has overwritten nothing.
    RotatingKVCache: Ability(
        True,
        lambda cache, count: cache.offset < cache.max_size,
        lambda cache: min(cache.offset, cache.keys.shape[2]),
    ),
    # It cuts off at its front on its own; before that it is like a full one.
    ChunkedKVCache: Ability(
        True,
        lambda cache, count: cache.start_position == 0 and cache.offset <= cache.chunk_size,
        lambda cache: cache.offset - cache.start_position,
    ),
    ArraysCache: Ability(True, lambda cache, count: False),
}

BY_NAME: Mapping[str, type] = {one.__name__: one for one in (*ABILITIES, CacheList)}


def check_supported(caches: Sequence[Any], architecture: str) -> None:
    """Refuse a model whose cache isn't made of known classes.

    Raises:
        UnsupportedModel: names the class.
    """
    for cache in _leaves(caches):
        if type(cache) not in ABILITIES:
            raise UnsupportedModel(
                f"mlx-lm's {architecture} keeps a {type(cache).__name__}, and the bridge doesn't know how to copy one "
                f"or to take tokens back from it; it knows {', '.join(sorted(BY_NAME))}."
            )


def copies(caches: Sequence[Any]) -> list[Any]:
    """Independent caches of the same tokens: the arrays are shared until one side appends."""
    return [type(cache).from_state(_renewed(cache.state)) for cache in caches]


def forget(caches: Sequence[Any], num_tokens: int) -> bool:
    """Whether any of them, after `num_tokens`, loses earlier lengths."""
    return any(ABILITIES[type(cache)].forgets or not _sees_each_token(cache, num_tokens) for cache in _used(caches))


def can_give_back(caches: Sequence[Any], num_tokens: int, num_back: int) -> bool:
    """Whether all of them, after `num_tokens`, can take back the last `num_back`."""
    return num_back == 0 or all(
        _sees_each_token(cache, num_tokens) and ABILITIES[type(cache)].can_give_back(cache, num_back)
        for cache in _used(caches)
    )


def give_back(caches: Sequence[Any], num_tokens: int) -> None:
    """Take back the last `num_tokens`, which `can_give_back` has allowed."""
    for cache in _leaves(caches):
        if num_tokens > 0:
            cache.trim(num_tokens)


def arrays_of(caches: Sequence[Any]) -> list[mx.array]:
    """Every array that they hold."""
    found: dict[str, mx.array] = {}
    for place, cache in enumerate(caches):
        _flatten(cache.state, str(place), found)
    return list(found.values())


def flat(caches: Sequence[Any]) -> tuple[dict[str, mx.array], list[Any]]:
    """Arrays by name without slack, and JSON that says where they belong."""
    arrays: dict[str, mx.array] = {}
    cut = copies(caches)
    for cache in _leaves(cut):
        _drop_slack(cache)
    facts = [[type(cache).__name__, _flatten(cache.state, str(place), arrays)] for place, cache in enumerate(cut)]
    return {name: mx.contiguous(array) for name, array in arrays.items()}, facts


def rebuilt(arrays: Mapping[str, mx.array], facts: Sequence[Any]) -> list[Any]:
    """Caches from what `flat` gave.

    Raises:
        LayoutError: arrays are missing, or a class isn't one of those above.
    """
    unknown = sorted({str(name) for name, _ in facts} - set(BY_NAME))
    if unknown:
        raise LayoutError(f"The arrays were kept by {', '.join(unknown)}; the bridge has {', '.join(sorted(BY_NAME))}.")
    return [BY_NAME[name].from_state(_tree(state, arrays)) for name, state in facts]  # type: ignore[attr-defined]


def _leaves(caches: Sequence[Any]) -> list[Any]:
    """Composites opened."""
    found: list[Any] = []
    for cache in caches:
        found.extend(_leaves(cache.caches) if type(cache) is CacheList else [cache])
    return found


def _used(caches: Sequence[Any]) -> list[Any]:
    """A model may make more caches than it uses; those have nothing to lose."""
    return [cache for cache in _leaves(caches) if not cache.empty()]


def _sees_each_token(cache: Any, num_tokens: int) -> bool:
    """Whether it has one column per token; a model may also store one for several, which can't be counted back."""
    return ABILITIES[type(cache)].num_stored is None or cache.offset == num_tokens


def _drop_slack(cache: Any) -> None:
    num_stored = ABILITIES[type(cache)].num_stored
    if num_stored is not None and cache.keys is not None:
        count = num_stored(cache)
        cache.keys, cache.values = cache.keys[..., :count, :], cache.values[..., :count, :]


def _renewed(tree: Any) -> Any:
    """The same values in array objects of their own: assigning into one changes every holder of the object."""
    if isinstance(tree, mx.array):
        return tree[:] if tree.ndim else mx.array(tree)
    if isinstance(tree, list | tuple):
        return [_renewed(one) for one in tree]
    return tree


def _flatten(tree: Any, path: str, arrays: dict[str, mx.array]) -> Any:
    if isinstance(tree, mx.array):
        arrays[path] = tree
        return {"array": path}
    if isinstance(tree, list | tuple):
        return [_flatten(one, f"{path}.{place}", arrays) for place, one in enumerate(tree)]
    return tree


def _tree(facts: Any, arrays: Mapping[str, mx.array]) -> Any:
    if isinstance(facts, Mapping):
        name = str(facts.get("array"))
        if name not in arrays:
            raise LayoutError(f"Array '{name}' is missing: the arrays were made for another layout.")
        return arrays[name][:]
    if isinstance(facts, list):
        return [_tree(one, arrays) for one in facts]
    return facts
