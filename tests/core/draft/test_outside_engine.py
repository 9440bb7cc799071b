"""A constraint engine of a stranger's, through the hook and an engine: a list of words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.constraint import ConstraintEngine
from phyla.draft.fill import FillSource
from phyla.errors import UnknownName, UsageError
from phyla.hookspecs import hookimpl
from phyla.kv.scheme import SUPPORTED, refused
from phyla.plugins import PluginManager, by_name
from phyla.request import ConstraintSpec, SamplingParams
from phyla.selection.proposers import choose_proposer, constraint_engines, fill_sources
from phyla.selection.wanted import Wanted
from phyla.settings import Settings
from phyla.testing.constraint import WordList
from phyla.testing.engines import a_request, running, toy_spec


def compiled(spec, tokenizer, eos_ids):
    words = [tokenizer.encode(word) for word in spec.source.split()]
    return WordList(words, eos_ids=eos_ids, vocab_size=tokenizer.vocab_size)


def supports(spec):
    return SUPPORTED if spec.kind == "words" else refused("words only")


FILL = FillSource("again", asserted=False, open=lambda request: None)


@hookimpl
def phyla_proposers(settings):
    return [ConstraintEngine("wordlist", supports, compiled), FILL]


@pytest.fixture
def proposers():
    manager = PluginManager()
    manager.register("wordlist", SimpleNamespace(phyla_api=1, phyla_proposers=phyla_proposers))
    return by_name(manager.proposers(Settings([])), "proposer")


def test_a_strangers_fill_is_on_only_where_it_is_named(proposers):
    assert fill_sources((), proposers) == ()
    assert fill_sources(("off",), proposers) == ()
    assert fill_sources(("again",), proposers) == (FILL,)


def test_engines_and_fills_arent_mistaken_for_each_other(proposers):
    with pytest.raises(UsageError, match="--fill"):
        choose_proposer(Wanted("again", "flag", "--proposer"), proposers)
    with pytest.raises(UnknownName, match="fill source"):
        fill_sources(("wordlist",), proposers)


def test_a_strangers_engine_is_chosen_and_binds_answers(proposers):
    choice = choose_proposer(Wanted(), proposers)
    spec = toy_spec("FF")
    compiler = ConstraintCompiler(constraint_engines(choice, proposers), spec.tokenizer, spec.tokenizer.eos_ids)
    asked = ConstraintSpec("words", "yes no perhaps")
    held = compiler.compile(asked)

    with running(toy_spec("FF", open_constraint=compiler.open)) as (engine, log):
        engine.submit(a_request("r", [1, 2, 3], 20, SamplingParams(temperature=1.0, seed=3), constraint=asked))
        heard = log.wait("r")

    assert choice.name == held.engine == "wordlist"
    assert heard.text in ("yes", "no", "perhaps")
    assert heard.finished.reason == "stop"
