"""The `[engine]` section: how requests share the machine."""

from __future__ import annotations

from typing import Literal

from phyla.settings import DecimalGB, PluginSettings, setting


class EngineSettings(PluginSettings, section="engine"):
    """Batching, limits and pacing."""

    batch: int = setting(8, flag="--batch", aliases=("--decode-concurrency",), ge=1, le=256)
    """Rows decoded together; 1 is strict: one request at a time, the same bits whatever arrives meanwhile."""

    step_ms: float = setting(50.0, flag="--step-ms", gt=0)
    """Milliseconds that a piece of prefill may take while other rows run, or twice their step if that is more."""

    queue: int = setting(64, flag="--queue", ge=1)
    """Requests that may wait; the next one is refused."""

    max_tokens: int | None = setting(None, flag="--max-tokens", ge=1, le=10_000_000)
    """Cap on the tokens of an answer whose request names none; without it answers run to their end."""

    kv_budget: DecimalGB | None = setting(None, flag="--kv-budget", metavar="SIZE")
    """What all running rows may come to store, at prompt plus cap each: GB, or with a unit (`8GiB`). Others wait."""

    memory_budget: DecimalGB | None = setting(None, flag="--memory-budget", metavar="SIZE")
    """What weights, caches and workspace may take together: GB, or with a unit. Bounds the context of a request."""

    context_limit: int | None = setting(None, lever="RD_CONTEXT_LIMIT", ge=2)
    """Lowers the model's context limit, in tokens; never raises it."""

    prefill_chunk: int | None = setting(
        None, flag="--prefill-chunk", aliases=("--prefill-step-size",), lever="RD_PREFILL_CHUNK", ge=1
    )
    """Tokens per prefill chunk; by default 2048, less where attention scores would need over 1 GiB."""

    early_first_token: bool = setting(True, lever="EARLY_FIRST_TOKEN")
    """Send the first token before the second one's step is built."""

    no_pipeline: bool = setting(False, lever="BATCH_NO_PIPELINE")
    """Read every token before the next step is built: slower, the same tokens."""

    vectorised_sampling: bool = setting(True, lever="BATCH_VEC_SAMPLE")
    """Draw for all rows in one call; off draws row by row, the same tokens."""

    batch_recurrent: bool = setting(True, lever="BATCH_SSM")
    """Off: requests to models with recurrent layers never share a step."""

    batch_grammar: bool = setting(True, lever="GRAMMAR_BATCH")
    """Off: requests with a constraint never share a step."""

    group: Literal["auto", "loop", "stacked"] = setting("auto", flag="--group")
    """How rows that share steps are stored: `stacked` in common buffers, with one append and one attention for all, or
    in a `loop` over rows that keep their own. The tokens are the same; `auto` stacks what can be stacked."""

    stuck_seconds: float = setting(120.0, flag="--stuck-seconds", gt=0)
    """Seconds without progress after which the engine counts as stuck and the server as unhealthy."""
