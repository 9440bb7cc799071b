"""The `[selection]` section: which plugin does what, and in which numbers."""

from __future__ import annotations

from typing import Literal

from phyla.settings import AutoOnOff, OnOff, PluginSettings, setting


class SelectionSettings(PluginSettings, section="selection"):
    """What runs a model. `auto` chooses and says why; anything else is honoured or refused, never replaced."""

    family: str = setting("auto", flag="--family", metavar="NAME")
    """Model family that binds the checkpoint; `auto` takes the one that knows its config best."""

    kv_scheme: str = setting("auto", flag="--kv-scheme", aliases=("--kv-quant", "--kv-bits"), metavar="NAME[:SPEC]")
    """How keys and values are stored, as `name`, `name:spec`, or per layer kind `full=name:spec,sliding=name`.

    `--kv-quant` takes upstream's words: `off`, `config`, `4`, `8`, `turbo:k8v3`.
    """

    kv_start: int = setting(0, flag="--quantized-kv-start", ge=0)
    """Tokens that a row stores plain before a scheme that encodes takes over. The step that crosses the number is
    still computed plain; a row can't go back to fewer tokens than it had then."""

    method: str = setting("auto", flag="--method", aliases=("--draft-kind",), metavar="NAME")
    """Draft method; `none` drafts nothing, `auto` drafts when a drafter is found that fits."""

    draft_model: str | None = setting(None, flag="--draft-model", metavar="MODEL")
    """Checkpoint of a drafter, named as a model is: a folder, a GGUF file, a hub id, `starter`, or part of a local
    model's name. Its method is recognised unless `--method` names one."""

    num_draft_tokens: int | None = setting(None, flag="--num-draft-tokens", ge=1, le=64)
    """Most tokens drafted at once; by default the method's own number."""

    proposer: str = setting("auto", flag="--proposer", metavar="NAME")
    """Engine for grammars and schemas; `none` refuses requests that need one."""

    fill: tuple[str, ...] = setting((), flag="--fill", lever="FILL", metavar="NAME")
    """Fill sources of the plugins, by name; `off` is none. None is on unless it is named."""

    route: Literal["auto", "exact", "fast"] = setting("auto", flag="--route")
    """`exact` computes as mlx-lm does, bit for bit, one row at a time; `fast` always uses fused work; `auto` is exact
    for a row that is alone and fast for company."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting("auto", flag="--dtype")
    """What activations and plain caches are; `auto` is float32 on a CPU and the checkpoint's own elsewhere."""

    weights: Literal["auto", "stored", "dense"] = setting("auto", flag="--weights")
    """`stored` keeps quantised weights as they are, `dense` dequantises them once at load and is refused where memory
    doesn't hold them. `auto` takes dense ones where they were measured to be faster and half of the memory holds them;
    `--l1`, `--route exact` and `--batch 1` keep the checkpoint's own form."""

    tier: Literal["l1", "l2"] = setting("l1", switches={"--l1": "l1", "--l2": "l2"})
    """Preset: `l1` is plain storage and mlx-lm's numbers; `l2` stores keys and values as the checkpoint's own
    quantisation file says and fuses their attention. A flag of its own overrides one value of a preset."""

    compiled_decode: AutoOnOff = setting("auto", flag="--compiled-decode", lever="COMPILED_DECODE")
    """Trace the decode step of the fast route once per shape and replay it; `auto` does where that was measured to be
    faster."""

    windows_ahead: AutoOnOff = setting("auto", flag="--windows-ahead", lever="WINDOWS_AHEAD")
    """Start traced verify windows before their tokens are known; the device waits for these, and the host reads what
    they drew where the device writes it. `auto` does on CUDA; `on` elsewhere only changes the order of the work."""

    compiled_activations: OnOff = setting(
        True, flag="--compiled-activations", lever=("COMPILED_GEGLU", "COMPILED_SWIGLU")
    )
    """Compile the activations of feed-forward layers, as mlx-lm does."""

    fused_sdpa: OnOff | None = setting(None, flag="--fused-sdpa", inverted_lever="NO_FUSED_SDPA")
    """Fused attention over quantised keys and values; by default on where the checkpoint's own quantisation file is
    followed and off elsewhere."""
