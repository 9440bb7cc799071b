"""The explicit-scheme rule: refused if it covers no layer or fails on a kind it lists; other kinds stay plain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from phyla.backend import BackendFacts
from phyla.errors import RefusedCombination, SettingsError, UnknownName, UnsupportedScheme
from phyla.kv import SUPPORTED, KVScheme, refused
from phyla.plan import Plan
from phyla.plugins import PluginManager
from phyla.selection import SelectionSettings, select
from phyla.settings import load_settings

from tests.core.selection.conftest import Declaring, scheme


def choose(manager: PluginManager, backend: BackendFacts, *schemes: KVScheme, **flags: str) -> Plan:
    manager.register("schemes", Declaring(schemes=schemes))
    spelt = {f"--{name.replace('_', '-')}": text for name, text in flags.items()}
    return select("toy", manager, load_settings([SelectionSettings], flags=spelt, env={}), backend)


def with_spec(name: str, *kinds: str) -> KVScheme:
    return scheme(name, *kinds, parse=lambda spec: scheme(name, *kinds, spec=spec.lower()), aliases={"4": "b4"})


def test_storage_is_plain_unless_asked(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, scheme("boxes", "full"))
    assert plan.layer_schemes == ("plain", "plain", "plain")
    assert (plan.kv_scheme.name, plan.kv_scheme.chosen_by) == ("plain", "auto")


def test_kinds_a_scheme_does_not_list_stay_plain_and_are_named(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, scheme("boxes", "full"), kv_scheme="boxes")
    assert plan.layer_schemes == ("boxes", "plain", "boxes")
    assert plan.notices == ("Layers of kind 'sliding' stay plain (1): boxes doesn't list that kind.",)


def test_a_scheme_that_covers_no_layer_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(UnsupportedScheme, match="'boxes' covers no layer of toy: it stores latent.*full, sliding"):
        choose(manager, backend, scheme("boxes", "latent"), kv_scheme="boxes")


def test_a_scheme_that_fails_on_a_kind_it_lists_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    picky = scheme(
        "boxes",
        "full",
        "sliding",
        supports=lambda layer: refused("its window is too small") if layer.kind == "sliding" else SUPPORTED,
    )
    with pytest.raises(UnsupportedScheme, match=r"layer 1 \(sliding\) of toy: its window.*--kv-scheme full=boxes"):
        choose(manager, backend, picky, kv_scheme="boxes")


def test_each_kind_may_have_its_own_scheme(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(
        manager, backend, with_spec("boxes", "full"), scheme("tins", "sliding"), kv_scheme="full=boxes:B8,sliding=tins"
    )
    assert plan.layer_schemes == ("boxes:b8", "tins", "boxes:b8")


def test_a_pair_keeps_a_scheme_to_one_kind(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, scheme("boxes", "full", "sliding"), kv_scheme="sliding=boxes")
    assert plan.layer_schemes == ("plain", "boxes", "plain")


def test_a_kind_the_model_lacks_is_named(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(UnknownName, match=r"layer kind in toy called 'fill'\. Did you mean 'full'"):
        choose(manager, backend, scheme("boxes", "full"), kv_scheme="fill=boxes")


def test_a_kind_given_twice_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match="'full' two schemes"):
        choose(manager, backend, scheme("boxes", "full"), kv_scheme="full=boxes,full=plain")


def test_an_unknown_scheme_names_the_near_match(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(UnknownName, match=r"no KV scheme 'boxs'\. Did you mean 'boxes'"):
        choose(manager, backend, scheme("boxes", "full"), kv_scheme="boxs")


def test_a_scheme_without_a_spec_takes_none(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(SettingsError, match="'boxes' takes nothing after its name; got 'k8'"):
        choose(manager, backend, scheme("boxes", "full"), kv_scheme="boxes:k8")


def test_upstreams_words_are_aliases_of_schemes(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, with_spec("boxes", "full"), kv_quant="4")
    assert plan.layer_schemes == ("boxes:b4", "plain", "boxes:b4")
    assert plan.kv_scheme.reason == "asked for with --kv-quant"


def test_quantisation_off_is_plain(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, kv_quant="off")
    assert plan.layer_schemes == ("plain", "plain", "plain")
    assert plan.kv_scheme.chosen_by == "flag"


def test_a_scheme_that_follows_a_file_is_completed_before_it_is_asked(
    manager: PluginManager, backend: BackendFacts
) -> None:
    finished = scheme("boxes", "full", spec="file-1a")

    def parse(spec: str) -> KVScheme:
        picky = scheme("boxes", "full", supports=lambda layer: refused("it knows no file yet"))
        return replace(picky, for_checkpoint=lambda checkpoint, layout: finished)

    plan = choose(manager, backend, scheme("boxes", "full", parse=parse), kv_scheme="boxes:file")
    assert plan.layer_schemes == ("boxes:file-1a", "plain", "boxes:file-1a")
