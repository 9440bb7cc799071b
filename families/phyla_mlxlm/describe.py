"""Facts of a model that only mlx-lm knows: what a config usually says, and what can't be known from it. No mlx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phyla import Checkpoint, LayerSpec, ModelFacts
from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.kv import Plane
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, text_section, weight_bytes
from phyla.model.quantization import parse_quant_section, quant_section

from phyla_mlxlm.installed import InstalledMlxLm

if TYPE_CHECKING:
    from phyla import LayerState

KIND = "mlxlm"
"""Of the one layer that a bridged model has: it keeps mlx-lm's prompt cache as a whole."""

ASSUMED_CONTEXT = 1 << 20

HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "model_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")

WORKS = (
    "works: rows in one batch (each computed by itself), prefixes in memory, seeds, log-probabilities, n-gram drafts"
)
LACKS = (
    "doesn't: cancelling inside a chunk, KV schemes other than plain, drafters that look inside, products of matrices "
    "shared by rows"
)


def describe(checkpoint: Checkpoint, installed: InstalledMlxLm | None) -> ModelFacts:
    """Read the facts.

    Raises:
        UnsupportedModel: mlx-lm isn't there or doesn't know the model; the model wants code of its own run.
        DamagedCheckpoint: the config doesn't say how large the vocabulary is.
    """
    config = checkpoint.config
    module = None if installed is None else installed.module_of(config)
    if module is None:
        raise UnsupportedModel(f"The installed mlx-lm has no class for model_type {config.get('model_type')!r}.")
    if config.get("model_file") is not None:
        raise UnsupportedModel(
            f"'model_file': {config['model_file']!r} asks for code from the checkpoint to be run. Phyla never does "
            "that; what the code computes has to be in an installed plugin or in mlx-lm itself."
        )
    parse_quant_section(config)
    text = {**config, **text_section(config)}
    context = _first(text, CONTEXT)
    planes = _planes(text)
    return ModelFacts(
        family="mlxlm",
        architecture=module,
        layout=(LayerSpec(0, KIND, planes, plain=new_state),),
        hidden_size=_first(text, HIDDEN) or 0,
        vocab_size=_vocabulary(text),
        context_limit=context or ASSUMED_CONTEXT,
        weight_bytes=weight_bytes(checkpoint),
        stored_dtype=stored_dtype(checkpoint),
        quantization=quant_section(config),
        eos_ids=eos_ids(checkpoint),
        sampling_defaults=sampling_defaults(checkpoint),
        can_cut_forward=False,
        notes=tuple(_notes(module, context, planes)),
    )


def new_state(layer: LayerSpec) -> LayerState:
    """An empty prompt cache; what it is made of shows when the model first runs."""
    from phyla_mlxlm.cache_state import CacheState

    return CacheState(layer)


def _planes(text: Mapping[str, Any]) -> tuple[Plane, ...]:
    """All layers' storage as one plane, at most: as if each of them attended to everything."""
    num_layers = _first(text, LAYERS) or 0
    latent, rotated = _first(text, ("kv_lora_rank",)), _first(text, ("qk_rope_head_dim",))
    if num_layers and latent:
        return (Plane("latent", num_layers, latent + (rotated or 0)),)
    num_heads, hidden_size = _first(text, HEADS), _first(text, HIDDEN)
    head_dim = _first(text, ("head_dim",)) or (hidden_size // num_heads if hidden_size and num_heads else None)
    # A state size is a recurrence's: how much of such a model attends can't be told from here.
    if not num_layers or not num_heads or not head_dim or _first(text, ("state_size", "ssm_state_size")):
        return ()
    width = num_layers * (_first(text, KV_HEADS) or num_heads)
    return (Plane("keys", width, head_dim), Plane("values", width, head_dim))


def _notes(module: str, context: int | None, planes: Sequence[Plane]) -> list[str]:
    notes = [f"runs as mlx-lm's own class ({module}), whole: one layer stands for all of them", WORKS, LACKS]
    if planes:
        notes.append(
            "bytes per token are those of attention to everything; sliding layers keep less, recurrences are left out"
        )
    else:
        notes.append("the size of the cache can't be told from the config, so it is left out of what has to fit")
    if context is None:
        notes.append(f"the config names no longest context; {ASSUMED_CONTEXT} tokens are assumed")
    return notes


def _vocabulary(text: Mapping[str, Any]) -> int:
    size = _first(text, ("vocab_size", "n_vocab", "padded_vocab_size"))
    if size is None:
        raise DamagedCheckpoint("'vocab_size' is missing; it has to be a positive whole number.")
    return size


def _first(section: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    """The first of several spellings that holds a positive whole number."""
    values = (section.get(key) for key in keys)
    return next((one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
