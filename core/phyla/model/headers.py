"""What every family reads from a checkpoint's config and tensor headers in the same way. No mlx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from phyla.model.facts import WeightBytes

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint

SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
FLOAT_DTYPES = ("float32", "bfloat16", "float16")


def is_ignored(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor is one the family knows and doesn't use."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def weight_bytes(
    checkpoint: Checkpoint, ignored: Sequence[str] = (), expert_patterns: Sequence[str] = ()
) -> WeightBytes:
    """Stored bytes, those of ignored tensors left out."""
    resident = experts = 0
    for name, info in checkpoint.tensor_infos().items():
        if is_ignored(name, ignored):
            continue
        if is_ignored(name, expert_patterns):
            experts += info.num_bytes
        else:
            resident += info.num_bytes
    return WeightBytes(resident, experts)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The floating dtype that most tensors have: that of norms, scales and everything unquantised."""
    counts = Counter(info.dtype for info in checkpoint.tensor_infos().values() if info.dtype in FLOAT_DTYPES)
    return counts.most_common(1)[0][0] if counts else "float32"


def eos_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Union of what config, its text section and the generation config call end of sequence."""
    config = checkpoint.config
    sections = (config, text_section(config), checkpoint.generation_config)
    found: set[int] = set()
    for section in sections:
        value = section.get("eos_token_id")
        found.update(one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))
    return tuple(sorted(found))


def sampling_defaults(checkpoint: Checkpoint) -> dict[str, float]:
    """The generation config's sampling values; `do_sample: false` means greedy."""
    section = checkpoint.generation_config
    if section.get("do_sample") is False:
        return {"temperature": 0.0}
    return {key: float(section[key]) for key in SAMPLING_KEYS if isinstance(section.get(key), int | float)}


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language keys of a multimodal config; empty for a flat one."""
    section = config.get("text_config")
    return section if isinstance(section, Mapping) else {}
