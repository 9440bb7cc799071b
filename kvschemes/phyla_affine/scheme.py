"""The declaration: which layers, how many bytes, which spec; no mlx until a state is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phyla import KVScheme, Settings
from phyla.errors import SettingsError
from phyla.kv import FULL, SLIDING, SUPPORTED, LayerSpec, LayerState, Plane, Support, refused
from phyla.kv.encoded import create_encoded, encoded_bytes_per_token
from phyla.selection.settings import SelectionSettings

from phyla_affine.config_file import FILE_NAME, read_config
from phyla_affine.settings import AffineSettings
from phyla_affine.spec import (
    CONFIG,
    ConfigSpec,
    LayerForm,
    UniformSpec,
    misfit,
    parsed,
    parsed_config,
    quantised_planes,
)

if TYPE_CHECKING:
    from phyla import Checkpoint
    from phyla.backend import BackendFacts
    from phyla.kv import Layout

    from phyla_affine.encoding import Products

FormOf = Callable[[LayerSpec], LayerForm]


@dataclass(frozen=True)
class Way:
    """How a device attends."""

    products: Products = "quantised"
    fuses_wide_steps: bool = False
    """Whatever the spec says."""


WayOn = Callable[[str], Way]


def affine_scheme(settings: Settings) -> KVScheme:
    """The scheme as these settings have it, 8 bits unless a spec says otherwise."""
    selection = settings.section(SelectionSettings)
    start, is_fused = selection.kv_start, selection.fused_sdpa
    uniform = UniformSpec(
        group_size=settings.section(AffineSettings).group_size, start=start, is_fused=is_fused is True
    )
    config = ConfigSpec(start=start, is_fused=is_fused is not False)

    def way_on(device: str) -> Way:
        # MLX's quantised matmul has mlx-lm's bits, and no kernel for four axes on CUDA. On a CPU it is scalar code, the
        # faster one for a single token and three times slower for 64 (4096 stored by the starter's heads, 8 bits: 4.9
        # and 189 ms, 5.9 and 54 from dequantised columns); a route that doesn't promise its bits fuses those.
        if device == "cuda":
            return Way("tiled" if is_fused is False else "dense")
        return Way(fuses_wide_steps=device == "cpu" and selection.route == "fast" and is_fused is not False)

    def parse(text: str) -> KVScheme:
        of_file = parsed_config(text, config)
        chosen = _uniform(parsed(text, uniform), way_on) if of_file is None else _following_file(of_file, way_on)
        return replace(chosen, parse=parse)

    return replace(_uniform(uniform, way_on), parse=parse, aliases={"4": "4", "8": "8", CONFIG: CONFIG})


def _uniform(spec: UniformSpec, way_on: WayOn) -> KVScheme:
    return _scheme(spec, lambda layer: spec.form(_planes(layer)), way_on)


def _following_file(spec: ConfigSpec, way_on: WayOn) -> KVScheme:
    def for_checkpoint(checkpoint: Checkpoint, layout: Layout) -> KVScheme:
        found = read_config(checkpoint.sidecar(FILE_NAME), layout)
        if spec.digest not in (None, found.digest):
            raise SettingsError(f"{FILE_NAME} has changed since the plan was made. Plan again.")
        return _scheme(replace(spec, digest=found.digest), lambda layer: found.forms[layer.index], way_on)

    # Nobody asks it about layers before it knows the file.
    return replace(_uniform(UniformSpec(), way_on), spec=str(spec), for_checkpoint=for_checkpoint)


def _scheme(spec: UniformSpec | ConfigSpec, form_of: FormOf, way_on: WayOn) -> KVScheme:
    def supports(layer: LayerSpec, backend: BackendFacts) -> Support:
        reason = misfit(form_of(layer), _planes(layer))
        return SUPPORTED if reason is None else refused(reason)

    def create(layer: LayerSpec, backend: BackendFacts, dtype: str) -> LayerState:
        from phyla_affine.encoding import AffineEncoding

        way = way_on(backend.device)
        encoding = AffineEncoding(
            layer, form_of(layer), way.products, fused_prefill=spec.is_fused or way.fuses_wide_steps
        )
        return create_encoded(layer, encoding, spec.start)

    def bytes_per_token(layer: LayerSpec, dtype: str) -> float:
        return encoded_bytes_per_token(layer, quantised_planes(_planes(layer), form_of(layer)), dtype)

    return KVScheme(
        name="affine",
        kinds=frozenset({FULL, SLIDING}),
        supports=supports,
        create=create,
        bytes_per_token=bytes_per_token,
        spec=str(spec),
        tier="L2" if isinstance(spec, ConfigSpec) else "L1",
        prefers_fused=isinstance(spec, ConfigSpec),
        encodes_from=max(1, spec.start),
        description="4 or 8 bit codes with a scale and a bias per group, as mlx-lm quantises its caches",
    )


def _planes(layer: LayerSpec) -> tuple[Plane, ...]:
    return layer.plane("keys"), layer.plane("values")
