"""The `[grammar]` section: what structured output may cost."""

from __future__ import annotations

from phyla.settings import OnOff, PluginSettings, setting


class GrammarSettings(PluginSettings, section="grammar"):
    """Compiling constraints, whatever engine enforces them."""

    enabled: OnOff = setting(True, lever="GRAMMAR")
    """Off: no constraint is enforced, as with `--proposer none --structured-fallback warn`."""

    compile_seconds: float = setting(5.0, flag="--grammar-seconds", gt=0)
    """Seconds of computing that trying out one schema or grammar may take before it is refused."""

    compile_memory_bytes: int = setting(1 << 30, ge=1 << 26)
    """Memory in bytes that trying one out may take, where the system enforces it."""

    max_source_bytes: int = setting(1 << 20, ge=64)
    """Longest schema or grammar in bytes."""

    max_nesting: int = setting(64, ge=1, le=256)
    """Deepest nesting of a schema."""

    jump: OnOff = setting(False, flag="--grammar-jump", lever="GRAMMAR_JUMP")
    """Propose what a grammar forces, several tokens to a step; the model still draws each of them, so that the answer
    is the same."""

    draft_tokens: int = setting(3, flag="--grammar-draft-tokens", lever="GRAMMAR_DRAFT_TOKENS", ge=1, le=31)
    """Most forced tokens proposed at once, where `jump` is on."""

    cache_entries: int = setting(256, ge=1)
    """Compiled constraints kept for the next request with the same one."""

    cache_bytes: int = setting(256 << 20, ge=0)
    """Memory in bytes that they and their sources may take together; what running requests use isn't counted."""
