"""How each layer's keys and values are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phyla.backend import BackendFacts
from phyla.checkpoint import Checkpoint
from phyla.errors import RefusedCombination, SettingsError, UnknownName, UnsupportedScheme
from phyla.kv import KVScheme, LayerSpec
from phyla.model import ModelFacts
from phyla.plan import Choice
from phyla.plugins import Declared, plugin_border
from phyla.selection.wanted import Wanted

PLAIN_NAME = "plain"
Schemes = Mapping[str, Declared[KVScheme]]


@dataclass(frozen=True)
class ChosenSchemes:
    """A scheme for every layer."""

    choice: Choice
    layers: tuple[KVScheme, ...]
    """One per layer of the layout; a layer that reads another's storage has its scheme."""

    notices: tuple[str, ...] = ()

    @property
    def identities(self) -> tuple[str, ...]:
        return tuple(scheme.identity for scheme in self.layers)

    @property
    def main(self) -> KVScheme | None:
        """The scheme that isn't plain, where there is one: what draft methods ask about."""
        return next((scheme for scheme in self.layers if scheme.name != PLAIN_NAME), None)


def choose_schemes(
    wanted: Wanted, checkpoint: Checkpoint, facts: ModelFacts, backend: BackendFacts, schemes: Schemes
) -> ChosenSchemes:
    """Plain storage under `auto`, else what was asked.

    An explicit scheme is refused if it covers no layer, or fails on a layer of a kind it lists. Layers of kinds it
    doesn't list stay plain, and a notice names them.

    Raises:
        UnknownName: no scheme, or no layer kind of this model, is called that.
        UnsupportedScheme: it can't store a layer, or stores none; says which and why.
    """
    plain = schemes[PLAIN_NAME].value
    if wanted.is_auto:
        return ChosenSchemes(wanted.choice(PLAIN_NAME, "nothing else was asked for"), (plain,) * len(facts.layout))
    asked = _by_kind(wanted.name, facts, schemes)
    by_identity = {scheme.identity: completed(scheme, checkpoint, facts, schemes) for scheme in asked.values()}
    by_kind = {kind: by_identity[scheme.identity] for kind, scheme in asked.items()}
    layers = tuple(_scheme_of(layer, facts, by_kind, plain) for layer in facts.layout)
    used = {scheme.identity: scheme for scheme in by_kind.values()}
    for layer, scheme in zip(facts.layout, layers, strict=True):
        if layer.owns_state and scheme is not plain:
            _check(layer, scheme, facts, backend, schemes)
    for scheme in used.values():
        if scheme not in layers:
            raise UnsupportedScheme(
                f"KV scheme '{scheme.identity}' covers no layer of {facts.family}: it stores "
                f"{_listed(scheme.kinds)}, and the layers are {_listed({layer.kind for layer in facts.layout})}. "
                f"Use --kv-scheme {PLAIN_NAME}."
            )
    notices = tuple(_left_plain(facts, layers, plain, used)) if plain.identity not in used else ()
    return ChosenSchemes(wanted.choice(",".join(sorted(used)) if len(used) > 1 else next(iter(used))), layers, notices)


def configured(text: str, schemes: Schemes) -> KVScheme:
    """The scheme that `name` or `name:spec` stands for, aliases included.

    Raises:
        UnknownName: there is none of that name.
        SettingsError: it takes no spec, or not this one.
    """
    name, colon, spec = text.partition(":")
    declared = schemes.get(name)
    if declared is None:
        aliases = {
            alias: (one, stands_for) for one in schemes.values() for alias, stands_for in one.value.aliases.items()
        }
        if name not in aliases:
            raise UnknownName("KV scheme", name, [*schemes, *aliases])
        declared, stands_for = aliases[name]
        spec = spec if colon else stands_for
    if not spec:
        return declared.value
    if declared.value.parse is None:
        raise SettingsError(f"KV scheme '{declared.value.name}' takes nothing after its name; got '{spec}'.")
    with plugin_border(declared.plugin, f"reading the scheme '{text}'"):
        return declared.value.parse(spec)


def completed(scheme: KVScheme, checkpoint: Checkpoint, facts: ModelFacts, schemes: Schemes) -> KVScheme:
    """The scheme with what a file beside the checkpoint says, where it follows one.

    Raises:
        UsageError: the file is missing, damaged or about another model.
    """
    if scheme.for_checkpoint is None:
        return scheme
    with plugin_border(schemes[scheme.name].plugin, f"reading the file that '{scheme.identity}' follows"):
        return scheme.for_checkpoint(checkpoint, facts.layout)


def _by_kind(text: str, facts: ModelFacts, schemes: Schemes) -> dict[str, KVScheme]:
    kinds = {layer.kind for layer in facts.layout}
    pairs = [item.partition("=") for item in text.split(",")]
    if not pairs[0][1] or ":" in pairs[0][0]:
        scheme = configured(text, schemes)
        return dict.fromkeys(sorted(scheme.kinds), scheme)
    chosen: dict[str, KVScheme] = {}
    for kind, equals, name in pairs:
        if not equals:
            raise SettingsError(f"'{text}' mixes forms: write one scheme, or KIND=NAME pairs separated by commas.")
        if kind not in kinds:
            raise UnknownName(f"layer kind in {facts.family} called", kind, kinds)
        if kind in chosen:
            raise RefusedCombination(f"'{text}' gives layers of kind '{kind}' two schemes; leave one.")
        scheme = configured(name, schemes)
        if kind not in scheme.kinds:
            raise UnsupportedScheme(
                f"KV scheme '{scheme.identity}' doesn't store layers of kind '{kind}'; it stores "
                f"{_listed(scheme.kinds)}."
            )
        chosen[kind] = scheme
    return chosen


def _scheme_of(layer: LayerSpec, facts: ModelFacts, by_kind: Mapping[str, KVScheme], plain: KVScheme) -> KVScheme:
    owner = layer if layer.source is None else facts.layout[layer.source]
    return by_kind.get(owner.kind, plain)


def _check(layer: LayerSpec, scheme: KVScheme, facts: ModelFacts, backend: BackendFacts, schemes: Schemes) -> None:
    with plugin_border(schemes[scheme.name].plugin, f"checking layer {layer.index} of {facts.family}"):
        support = scheme.supports(layer, backend)
    if not support:
        others = sorted({one.kind for one in facts.layout} & scheme.kinds - {layer.kind})
        hint = f" Or keep it to the others: --kv-scheme {','.join(f'{kind}={scheme.identity}' for kind in others)}."
        raise UnsupportedScheme(
            f"KV scheme '{scheme.identity}' can't store layer {layer.index} ({layer.kind}) of {facts.family}: "
            f"{support.reason}.{hint if others else ' Or use --kv-scheme plain.'}"
        )


def _left_plain(
    facts: ModelFacts, layers: Sequence[KVScheme], plain: KVScheme, used: Mapping[str, KVScheme]
) -> Iterator[str]:
    for kind in sorted({layer.kind for layer in facts.layout}):
        left = [
            str(layer.index)
            for layer, scheme in zip(facts.layout, layers, strict=True)
            if layer.kind == kind and scheme is plain
        ]
        if left:
            asked = " and ".join(sorted(used))
            yield f"Layers of kind '{kind}' stay plain ({', '.join(left)}): {asked} doesn't list that kind."


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
