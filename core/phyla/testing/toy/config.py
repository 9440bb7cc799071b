"""What a toy is made of: its config, layout and tensor shapes. No mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from phyla.draft.heads import EMBEDDING_HEAD
from phyla.errors import UnsupportedModel
from phyla.kv.layer_spec import FULL, LATENT, RECURRENT, SLIDING, LayerSpec, Layout, Plane
from phyla.model.facts import ModelFacts, WeightBytes
from phyla.model.step import Tap

KINDS = {"F": FULL, "S": SLIDING, "R": RECURRENT, "L": LATENT}


@dataclass(frozen=True)
class ToyConfig:
    """Keys of a toy's `config.json`."""

    layers: str = "FF"
    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 96
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    latent_size: int = 32
    rope_size: int = 16
    """Rotated numbers per token of a latent layer."""

    sliding_window: int = 8
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    eos_token_id: int = 2

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ToyConfig:
        """The toy a config describes; keys it doesn't know are left alone.

        Raises:
            UnsupportedModel: `layers` has a letter that isn't a kind.
        """
        known = {field.name for field in fields(cls)}
        parsed = cls(**{key: value for key, value in config.items() if key in known})
        for letter in parsed.layers:
            if letter not in KINDS:
                raise UnsupportedModel(f"'layers' has '{letter}'; a toy's layers are of {', '.join(KINDS)}.")
        return parsed


def toy_config(layers: str = "FF", **changes: Any) -> dict[str, Any]:
    """A `config.json` of a toy; `changes` are fields of `ToyConfig`."""
    return {"model_type": "toy", **asdict(replace(ToyConfig(), layers=layers, **changes))}


def toy_facts(config: ToyConfig, **changes: Any) -> ModelFacts:
    """The facts of a toy; `changes` are fields of `ModelFacts` that a checkpoint decides."""
    layout = toy_layout(config)
    num_numbers = sum(rows * columns for rows, columns in map(_matrix, toy_shapes(config).values()))
    facts = ModelFacts(
        family="toy",
        architecture="toy",
        layout=layout,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_limit=config.max_position_embeddings,
        weight_bytes=WeightBytes(resident=4 * num_numbers),
        stored_dtype="float32",
        taps=(*(Tap(layer.index) for layer in layout), Tap(len(layout) - 1, "post")),
        heads=(EMBEDDING_HEAD,),
        eos_ids=(config.eos_token_id,),
    )
    return replace(facts, **changes)


def toy_layout(config: ToyConfig) -> Layout:
    """One spec per letter."""
    return tuple(_layer(index, KINDS[letter], config) for index, letter in enumerate(config.layers))


def toy_shapes(config: ToyConfig) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes."""
    E, V = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (V, E), "norm.weight": (E,), "head.weight": (V, E)}
    for index, letter in enumerate(config.layers):
        own = {f"{part}.weight": shape for part, shape in _mixer_shapes(KINDS[letter], config).items()}
        own |= {
            "input_norm.weight": (E,),
            "mlp_norm.weight": (E,),
            "gate.weight": (config.intermediate_size, E),
            "up.weight": (config.intermediate_size, E),
            "down.weight": (E, config.intermediate_size),
        }
        shapes |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
    return shapes


def _layer(index: int, kind: str, config: ToyConfig) -> LayerSpec:
    if kind == RECURRENT:
        state = Plane("state", num_heads=1, width=config.hidden_size, per_token=False, dtype="float32")
        return LayerSpec(index, kind, (state,))
    if kind == LATENT:
        return LayerSpec(
            index,
            kind,
            (Plane("latent", 1, config.latent_size), Plane("rope", 1, config.rope_size)),
            scale=(config.latent_size + config.rope_size) ** -0.5,
            num_query_heads=config.num_attention_heads,
        )
    return LayerSpec(
        index,
        kind,
        tuple(Plane(name, config.num_key_value_heads, config.head_dim) for name in ("keys", "values")),
        scale=config.head_dim**-0.5,
        window=config.sliding_window if kind == SLIDING else None,
        num_query_heads=config.num_attention_heads,
    )


def _mixer_shapes(kind: str, config: ToyConfig) -> dict[str, tuple[int, ...]]:
    E, H = config.hidden_size, config.num_attention_heads
    if kind == RECURRENT:
        return {"decay": (E, E), "update": (E, E), "output_gate": (E, E), "o": (E, E)}
    if kind == LATENT:
        C, R = config.latent_size, config.rope_size
        return {"q": (H * (C + R), E), "latent": (C, E), "k_rope": (R, E), "o": (E, H * C)}
    D, K = config.head_dim, config.num_key_value_heads
    return {"q": (H * D, E), "k": (K * D, E), "v": (K * D, E), "o": (E, H * D)}


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
