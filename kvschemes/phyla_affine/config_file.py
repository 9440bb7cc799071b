"""`kv_config.json`: bits and group size of each layer, as calibration tools write it beside a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.errors import SettingsError, UnsupportedScheme
from phyla.kv import FULL, SLIDING, LayerSpec, Layout

from phyla_affine.spec import LayerForm, check_numbers

FILE_NAME = "kv_config.json"
KEYS = ("layer_idx", "bits", "group_size")
KINDS = (FULL, SLIDING)


@dataclass(frozen=True)
class ConfigFile:
    """What the file says, by index of the layer in the layout."""

    forms: Mapping[int, LayerForm]
    digest: str
    """Of its bytes: two files never share stored tokens."""


def read_config(data: bytes | None, layout: Layout) -> ConfigFile:
    """Check the file against the layers that it is about.

    `layer_idx` counts the layers that own storage, which is the order of a list of caches.

    Raises:
        UnsupportedScheme: there is none, or it is about other layers than this model has.
        SettingsError: it is damaged, says something twice, or asks for what can't be packed.
    """
    if data is None:
        raise UnsupportedScheme(
            f"The checkpoint has no {FILE_NAME}, which affine:config follows. Put one beside its weights, or choose "
            "the same bits for all layers: --kv-scheme affine:8."
        )
    owners = [layer for layer in layout if layer.owns_state]
    forms: dict[int, LayerForm] = {}
    for place, entry in enumerate(_entries(data)):
        index, form = _entry(entry, f"Entry {place} of {FILE_NAME}")
        layer = _layer(index, owners)
        if layer.index in forms:
            raise SettingsError(f"{FILE_NAME} has two entries for layer_idx {index}. Leave one.")
        forms[layer.index] = form
    missing = [str(at) for at, layer in enumerate(owners) if layer.kind in KINDS and layer.index not in forms]
    if missing:
        raise UnsupportedScheme(
            f"{FILE_NAME} says nothing about layer_idx {', '.join(missing)}, which store keys and values too. Give "
            "each an entry, or choose the same bits for all layers: --kv-scheme affine:8."
        )
    return ConfigFile(forms, hashlib.sha256(data).hexdigest()[:12])


def _entries(data: bytes) -> list[Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{FILE_NAME} isn't JSON: {error}.") from error
    if not isinstance(parsed, list):
        raise SettingsError(f"{FILE_NAME} must be an array of objects with {', '.join(KEYS)}.")
    return parsed


def _entry(entry: Any, where: str) -> tuple[int, LayerForm]:
    numbers = [entry.get(key) for key in KEYS] if isinstance(entry, dict) else []
    # Not `isinstance`: true is no number of bits.
    whole = [number for number in numbers if type(number) is int]
    if len(whole) < len(KEYS):
        raise SettingsError(f"{where} must be an object with {', '.join(KEYS)} as whole numbers; it is {entry!r:.80}.")
    index, bits, group_size = whole
    check_numbers(bits, group_size, where)
    return index, LayerForm(bits, group_size)


def _layer(index: int, owners: list[LayerSpec]) -> LayerSpec:
    if not 0 <= index < len(owners):
        raise UnsupportedScheme(
            f"{FILE_NAME} has an entry for layer_idx {index}; the layers that store anything are 0 to "
            f"{len(owners) - 1}. It was made for another model."
        )
    if owners[index].kind not in KINDS:
        raise UnsupportedScheme(
            f"{FILE_NAME} has an entry for layer_idx {index}, a {owners[index].kind} layer: only "
            f"{' and '.join(KINDS)} layers are quantised. Take it out."
        )
    return owners[index]
