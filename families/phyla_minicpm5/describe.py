"""Facts of a MiniCPM5 from its config and tensor headers. No mlx."""

from __future__ import annotations

from phyla import Checkpoint, LayerSpec, ModelFacts
from phyla.draft.heads import EMBEDDING_HEAD
from phyla.kv import FULL, Plane
from phyla.model.facts import ReasoningMarkers
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, weight_bytes
from phyla.model.quantization import quant_section
from phyla.model.step import Tap

from phyla_minicpm5.shape import Shape, is_released, shape_of

IGNORED = ("*.rotary_emb.inv_freq",)


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """Read the facts.

    Raises:
        UnsupportedModel: the config is of another kind of llama; names the key.
        DamagedCheckpoint: the config contradicts itself.
    """
    shape = shape_of(checkpoint.config)
    layout = tuple(_layer(index, shape) for index in range(shape.num_layers))
    return ModelFacts(
        family="minicpm5",
        architecture="llama",
        layout=layout,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        context_limit=shape.context_limit,
        weight_bytes=weight_bytes(checkpoint, IGNORED),
        stored_dtype=stored_dtype(checkpoint),
        quantization=quant_section(checkpoint.config),
        ignored_tensors=IGNORED,
        taps=(*(Tap(layer.index) for layer in layout), Tap(len(layout) - 1, "post")),
        heads=(EMBEDDING_HEAD,),
        eos_ids=eos_ids(checkpoint),
        sampling_defaults=sampling_defaults(checkpoint),
        output_parser="minicpm",
        reasoning=ReasoningMarkers("<think>", "</think>"),
        default_thinking=False,
        notes=_notes(checkpoint),
    )


def _layer(index: int, shape: Shape) -> LayerSpec:
    return LayerSpec(
        index,
        FULL,
        tuple(Plane(name, shape.num_kv_heads, shape.head_dim) for name in ("keys", "values")),
        scale=shape.head_dim**-0.5,
        num_query_heads=shape.num_heads,
    )


def _notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    notes = []
    if not is_released(checkpoint.config):
        notes.append("not the released MiniCPM5-1B: run as one because it was asked for, or nobody knows it better")
    if "eos_token_id" not in checkpoint.generation_config:
        notes.append("generation_config.json names no end of sequence, where MiniCPM5 lists its own")
    return tuple(notes)
