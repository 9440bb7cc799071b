"""Facts of a Qwen3.5 model from its config and tensor headers. No mlx."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phyla import Checkpoint, LayerSpec, ModelFacts
from phyla.draft.heads import EMBEDDING_HEAD
from phyla.kv import FULL, RECURRENT, Plane
from phyla.model.facts import ReasoningMarkers
from phyla.model.headers import eos_ids, is_ignored, sampling_defaults, stored_dtype, text_section, weight_bytes
from phyla.model.quantization import quant_section
from phyla.model.step import Tap

from phyla_qwen35.config import POSITION_AXES, Mixer, Qwen35Config, qwen35_config
from phyla_qwen35.names import DRAFT_HEADS, TOWERS, Names, names_of

EXPERTS = ("*.mlp.experts.*", "*.mlp.switch_mlp.*")
END_OF_TURN = "<|im_end|>"
RELEASED_VOCABULARY, RELEASED_END_OF_TURN = 248320, 248046
CONV, STATE = "conv", "state"
"""Planes of a recurrent layer: the last inputs of its convolution, and the matrix it folds its past into."""


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """Read the facts.

    Raises:
        UnsupportedModel: the config asks for something this family doesn't do; names the key.
        DamagedCheckpoint: the config contradicts itself or the tensors. Either error names all that is wrong.
    """
    config = qwen35_config(checkpoint.config, has_head=_has_head(checkpoint, names_of(checkpoint)))
    ignored = (*TOWERS, *DRAFT_HEADS)
    layout = tuple(_layer(index, mixer, config) for index, mixer in enumerate(config.mixers))
    return ModelFacts(
        family="qwen35",
        architecture=config.architecture,
        layout=layout,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_limit=config.context_limit,
        weight_bytes=weight_bytes(checkpoint, ignored, EXPERTS),
        stored_dtype=stored_dtype(checkpoint),
        quantization=quant_section(checkpoint.config),
        ignored_tensors=ignored,
        taps=(*(Tap(layer.index) for layer in layout), Tap(len(layout) - 1, "post")),
        heads=(EMBEDDING_HEAD,),
        eos_ids=_eos_ids(checkpoint, config),
        sampling_defaults=sampling_defaults(checkpoint),
        output_parser="qwen",
        reasoning=ReasoningMarkers("<think>", "</think>"),
        position_axes=POSITION_AXES,
        notes=_notes(checkpoint),
    )


def is_tied(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether the embedding is the output projection.

    The language keys go first; a config that doesn't say is read by whether there is a head.
    """
    key = "tie_word_embeddings"
    stated = text_section(checkpoint.config).get(key, checkpoint.config.get(key))
    return not _has_head(checkpoint, names) if stated is None else bool(stated)


def _has_head(checkpoint: Checkpoint, names: Names) -> bool:
    return f"{names.head}.weight" in checkpoint.tensor_infos()


def _layer(index: int, mixer: Mixer, config: Qwen35Config) -> LayerSpec:
    if mixer == "full_attention":
        return LayerSpec(
            index,
            FULL,
            tuple(Plane(name, config.num_kv_heads, config.head_dim) for name in ("keys", "values")),
            scale=config.head_dim**-0.5,
            num_query_heads=config.num_heads,
        )
    delta = config.delta
    conv = Plane(CONV, 1, delta.mixed_width, per_token=False, rows=delta.kernel - 1)
    state = Plane(STATE, delta.num_value_heads, delta.key_dim, per_token=False, rows=delta.value_dim, dtype="float32")
    return LayerSpec(index, RECURRENT, (conv, state))


def _eos_ids(checkpoint: Checkpoint, config: Qwen35Config) -> tuple[int, ...]:
    """What the configs say, and the end of a turn, which some of them leave out."""
    end_of_turn = _end_of_turn(checkpoint, config)
    return tuple(sorted({*eos_ids(checkpoint), *([] if end_of_turn is None else [end_of_turn])}))


def _end_of_turn(checkpoint: Checkpoint, config: Qwen35Config) -> int | None:
    stored = checkpoint.sidecar("tokenizer_config.json")
    try:
        added: Any = json.loads(stored).get("added_tokens_decoder", {}) if stored else {}
    except ValueError:
        added = {}  # Whoever opens the tokenizer says what's wrong with it.
    if isinstance(added, Mapping):
        for token_id, token in added.items():
            if isinstance(token, Mapping) and token.get("content") == END_OF_TURN and token_id.isdigit():
                return int(token_id)
    return RELEASED_END_OF_TURN if config.vocab_size == RELEASED_VOCABULARY else None


def _notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    notes = []
    if num_bytes := _bytes_of(checkpoint, TOWERS):
        notes.append(f"text only: the vision tower in the checkpoint ({num_bytes / 1e6:.1f} MB) isn't loaded")
    if num_bytes := _bytes_of(checkpoint, DRAFT_HEADS):
        notes.append(f"a draft head rides along (mtp, {num_bytes / 1e6:.1f} MB); the model itself doesn't use it")
    stated = text_section(checkpoint.config) or checkpoint.config
    interval, kinds = stated.get("full_attention_interval"), stated.get("layer_types")
    if isinstance(interval, int) and interval > 0 and isinstance(kinds, list):
        every = ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(len(kinds))]
        if kinds != every:
            notes.append("layer_types and full_attention_interval disagree; layer_types counts")
    return tuple(notes)


def _bytes_of(checkpoint: Checkpoint, patterns: Sequence[str]) -> int:
    infos = checkpoint.tensor_infos().values()
    return sum(info.num_bytes for info in infos if is_ignored(info.name, patterns))
