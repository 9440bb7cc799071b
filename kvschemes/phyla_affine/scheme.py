"""The declaration: which layers, how many bytes, which spec; no mlx until a state is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
ProductsOn = Callable[[str], "Products"]
"""How a device takes scores and outputs."""


def affine_scheme(settings: Settings) -> KVScheme:
    """The scheme as these settings have it, 8 bits unless a spec says otherwise."""
    selection = settings.section(SelectionSettings)
    start, is_fused = selection.kv_start, selection.fused_sdpa
    uniform = UniformSpec(
        group_size=settings.section(AffineSettings).group_size, start=start, is_fused=is_fused is True
    )
    config = ConfigSpec(start=start, is_fused=is_fused is not False)

    def products_on(device: str) -> Products:
        # MLX's quantised matmul has mlx-lm's bits, and no kernel for four axes on CUDA. On a CPU it is scalar code: one
        # token over 4096 took 37 ms per layer of the starter, tiles of dense columns 5 (2 cores, loaded); only a route
        # that doesn't promise those bits avoids it there.
        if device == "cuda":
            return "tiled" if is_fused is False else "dense"
        return "tiled" if device == "cpu" and selection.route == "fast" else "quantised"

    def parse(text: str) -> KVScheme:
        of_file = parsed_config(text, config)
        chosen = (
            _uniform(parsed(text, uniform), products_on) if of_file is None else _following_file(of_file, products_on)
        )
        return replace(chosen, parse=parse)

    return replace(_uniform(uniform, products_on), parse=parse, aliases={"4": "4", "8": "8", CONFIG: CONFIG})


def _uniform(spec: UniformSpec, products_on: ProductsOn) -> KVScheme:
    return _scheme(spec, lambda layer: spec.form(_planes(layer)), products_on)


def _following_file(spec: ConfigSpec, products_on: ProductsOn) -> KVScheme:
    def for_checkpoint(checkpoint: Checkpoint, layout: Layout) -> KVScheme:
        found = read_config(checkpoint.sidecar(FILE_NAME), layout)
        if spec.digest not in (None, found.digest):
            raise SettingsError(f"{FILE_NAME} has changed since the plan was made. Plan again.")
        return _scheme(replace(spec, digest=found.digest), lambda layer: found.forms[layer.index], products_on)

    # Nobody asks it about layers before it knows the file.
    return replace(_uniform(UniformSpec(), products_on), spec=str(spec), for_checkpoint=for_checkpoint)


def _scheme(spec: UniformSpec | ConfigSpec, form_of: FormOf, products_on: ProductsOn) -> KVScheme:
    def supports(layer: LayerSpec, backend: BackendFacts) -> Support:
        reason = misfit(form_of(layer), _planes(layer))
        return SUPPORTED if reason is None else refused(reason)

    def create(layer: LayerSpec, backend: BackendFacts, dtype: str) -> LayerState:
        from phyla_affine.encoding import AffineEncoding

        encoding = AffineEncoding(layer, form_of(layer), products_on(backend.device), fused_prefill=spec.is_fused)
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
