"""A constraint engine of a stranger's, through the hook and an engine: a list of words."""

from __future__ import annotations

from types import SimpleNamespace

from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.constraint import ConstraintEngine
from phyla.hookspecs import hookimpl
from phyla.kv.scheme import SUPPORTED, refused
from phyla.plugins import PluginManager, by_name
from phyla.request import ConstraintSpec, SamplingParams
from phyla.selection.proposers import choose_proposer, constraint_engines
from phyla.selection.wanted import Wanted
from phyla.settings import Settings
from phyla.testing.constraint import WordList
from phyla.testing.engines import a_request, running, toy_spec


def compiled(spec, tokenizer, eos_ids):
    words = [tokenizer.encode(word) for word in spec.source.split()]
    return WordList(words, eos_ids=eos_ids, vocab_size=tokenizer.vocab_size)


def supports(spec):
    return SUPPORTED if spec.kind == "words" else refused("words only")


@hookimpl
def phyla_proposers(settings):
    return [ConstraintEngine("wordlist", supports, compiled)]


def test_a_strangers_engine_is_chosen_and_binds_answers():
    manager = PluginManager()
    manager.register("wordlist", SimpleNamespace(phyla_api=1, phyla_proposers=phyla_proposers))
    proposers = by_name(manager.proposers(Settings([])), "proposer")
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
