"""Facts of a universal model from its config and tensor headers. No mlx."""

from __future__ import annotations

from phyla import Checkpoint, LayerSpec, ModelFacts
from phyla.draft.heads import EMBEDDING_HEAD
from phyla.kv import FULL, SLIDING, Plane
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, weight_bytes
from phyla.model.quantization import quant_section
from phyla.model.step import Tap

from phyla_universal.config import DecoderConfig, decoder_config

HEAD = "lm_head"


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """Read the facts.

    Raises:
        UnsupportedModel: the config asks for something the decoder can't do; names the key.
        DamagedCheckpoint: the config contradicts itself.
    """
    config = decoder_config(checkpoint.config)
    ignored = ("*.rotary_emb.inv_freq", f"{HEAD}.*") if is_tied(checkpoint) else ("*.rotary_emb.inv_freq",)
    layout = tuple(_layer(index, window, config) for index, window in enumerate(config.windows))
    return ModelFacts(
        family="universal",
        architecture=config.architecture,
        layout=layout,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_limit=config.context_limit,
        weight_bytes=weight_bytes(checkpoint, ignored),
        stored_dtype=stored_dtype(checkpoint),
        quantization=quant_section(checkpoint.config),
        ignored_tensors=ignored,
        taps=(*(Tap(layer.index) for layer in layout), Tap(len(layout) - 1, "post")),
        heads=(EMBEDDING_HEAD,),
        eos_ids=eos_ids(checkpoint),
        sampling_defaults=sampling_defaults(checkpoint),
        notes=_notes(checkpoint, config),
    )


def is_tied(checkpoint: Checkpoint) -> bool:
    """Whether the embedding is the output projection.

    Libraries disagree on the default, so a config that doesn't say is read by whether there is a head to use.
    """
    stated = checkpoint.config.get("tie_word_embeddings")
    return bool(stated) if stated is not None else f"{HEAD}.weight" not in checkpoint.tensor_infos()


def _layer(index: int, window: int | None, config: DecoderConfig) -> LayerSpec:
    return LayerSpec(
        index,
        FULL if window is None else SLIDING,
        tuple(Plane(name, config.num_kv_heads, config.head_dim) for name in ("keys", "values")),
        scale=config.head_dim**-0.5,
        window=window,
        num_query_heads=config.num_heads,
    )


def _notes(checkpoint: Checkpoint, config: DecoderConfig) -> tuple[str, ...]:
    notes, stored = [], checkpoint.config
    asks_for_windows = bool(stored.get("use_sliding_window")) or (
        stored.get("sliding_window") is not None and stored.get("use_sliding_window") is None
    )
    if asks_for_windows and not any(config.windows):
        notes.append("sliding_window is not applied: every layer sees the whole context, as in mlx-lm")
    if is_tied(checkpoint) and f"{HEAD}.weight" in checkpoint.tensor_infos():
        notes.append(f"tie_word_embeddings is true: {HEAD}.weight is there and isn't used, as in mlx-lm")
    return tuple(notes)
