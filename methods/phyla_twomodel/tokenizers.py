"""Whether two models read and write the same tokens: found out by encoding, since sizes alone say little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla.kv import SUPPORTED, Support, refused

if TYPE_CHECKING:
    from phyla import Drafter, DraftTarget, ModelFacts
    from phyla.tokenizer import Tokenizer

PROBES = (
    "The quick brown fox jumps over the lazy dog. 0123456789 3.14159 1,000,000",
    "def add(first, second):\n    return first + second\n\n\tprint(add(1, 2))  # comment\r\n",
    '{"name": "search", "arguments": {"query": "caf\u00e9", "limit": 10}}',
    "Gr\u00fc\u00dfe, \u4f60\u597d\u4e16\u754c, \u043f\u0440\u0438\u0432\u0435\u0442, "
    "\u0645\u0631\u062d\u0628\u0627, \U0001f642\U0001f680",
    "   leading and  double   spaces ",
    "https://example.com/a_path?query=1&other=two#anchor don't it's I'll",
)
NOT_MODELS = ("_mtp", "_assistant", "_dspark", "_dflash", "_eagle3", "whisper")


def is_language_model(config: Mapping[str, Any]) -> bool:
    """Whether a config describes a model of its own, not a head or a helper of another one."""
    model_type = str(config.get("model_type", ""))
    architectures = " ".join(str(name).lower() for name in config.get("architectures") or ())
    is_helper = model_type.endswith(NOT_MODELS) or any(name.strip("_") in architectures for name in NOT_MODELS[2:])
    return bool(model_type) and not is_helper and "diffusion" not in model_type


def same_tokenizer(target: DraftTarget, drafter: Drafter | None) -> Support:
    """Yes, or the first text that the two encode differently."""
    from phyla.tokenizer import why_no_text

    assert drafter is not None, "it needs a drafter"
    ours, theirs = target.checkpoint.tokenizer(), drafter.checkpoint.tokenizer()
    for one in (ours, theirs):
        if (reason := why_no_text(one)) is not None:
            return refused(f"whether two models share their tokens is told by their tokenizers. {reason}")
    if ours.fingerprint == theirs.fingerprint:
        return SUPPORTED
    for probe in (*PROBES, *_markers(ours), *_markers(theirs)):
        if ours.encode(probe) != theirs.encode(probe):
            return refused(
                f"the drafter {drafter.checkpoint.model_id} has another tokenizer, which encodes {probe[:40]!r} "
                "differently; take a drafter of the target's own series"
            )
    return SUPPORTED


def vocabulary_notes(target: ModelFacts, drafter: ModelFacts) -> tuple[str, ...]:
    """Tables of different sizes are usually padding; ids that only one of them has are never drafted."""
    if target.vocab_size == drafter.vocab_size:
        return ()
    return (
        f"The drafter has logits for {drafter.vocab_size} ids and the target for {target.vocab_size}; "
        f"only the first {min(target.vocab_size, drafter.vocab_size)} are drafted.",
    )


def _markers(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.special_spellings)
