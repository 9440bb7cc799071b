"""TurboQuant: affine keys and rotated values in codebook cells, each at bits of its own.

More context per byte than affine storage of the same quality: keys at 8 bits and values at 3 take 2.56 times less than
bf16. Decodes everything it attends to, so it costs more speed. Full attention layers only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from phyla import KVScheme, Settings, hookimpl
from phyla.kv import FULL, SUPPORTED, LayerSpec, LayerState, Plane, Support, refused
from phyla.kv.encoded import create_encoded, encoded_bytes_per_token
from phyla.selection.settings import SelectionSettings

from phyla_turboquant.spec import TurboSpec, encoded_planes, misfit, parsed

if TYPE_CHECKING:
    from phyla.backend import BackendFacts

    from phyla_turboquant.encoding import TurboEncoding

phyla_api = 1


@hookimpl
def phyla_kv_schemes(settings: Settings) -> list[KVScheme]:
    return [turbo_scheme(TurboSpec(start=settings.section(SelectionSettings).kv_start))]


def turbo_scheme(default: TurboSpec) -> KVScheme:
    """The scheme with the spec it has unless one is written."""

    def parse(text: str) -> KVScheme:
        return replace(_scheme(parsed(text, default)), parse=parse)

    return replace(_scheme(default), parse=parse, aliases={"turbo": ""})


def _scheme(spec: TurboSpec) -> KVScheme:
    @cache
    def encoding_of(keys: Plane, values: Plane, device: str) -> TurboEncoding:
        # One for all layers and rows of a shape: what it compiles is traced once.
        from phyla_turboquant.encoding import TurboEncoding

        return TurboEncoding(keys, values, spec, on_cuda=device == "cuda")

    def supports(layer: LayerSpec, backend: BackendFacts) -> Support:
        reason = misfit(layer.plane("keys"), layer.plane("values"))
        return SUPPORTED if reason is None else refused(reason)

    def create(layer: LayerSpec, backend: BackendFacts, dtype: str) -> LayerState:
        return create_encoded(
            layer, encoding_of(layer.plane("keys"), layer.plane("values"), backend.device), spec.start
        )

    def bytes_per_token(layer: LayerSpec, dtype: str) -> float:
        return encoded_bytes_per_token(layer, encoded_planes(layer.plane("keys"), layer.plane("values"), spec), dtype)

    return KVScheme(
        name="turboquant",
        kinds=frozenset({FULL}),
        supports=supports,
        create=create,
        bytes_per_token=bytes_per_token,
        spec=str(spec),
        encodes_from=max(1, spec.start),
        description="affine keys and rotated values in codebook cells, 2 to 8 bits each; full layers",
    )
