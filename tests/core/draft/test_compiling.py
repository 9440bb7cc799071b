"""Compiled constraints: tried out in a process that can be ended, made once, kept, and refused where nobody can."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.constraint import ConstraintEngine
from phyla.draft.grammar_settings import GrammarSettings
from phyla.draft.looking import MAX_QUICK_CHARS
from phyla.errors import ConstraintError
from phyla.kv.scheme import SUPPORTED, refused
from phyla.request import ConstraintSpec
from phyla.testing.constraint import WordList
from phyla.testing.engines import a_request
from phyla.testing.scripted import CharacterTokenizer

TOKENIZER = CharacterTokenizer()
SPEC = ConstraintSpec("words", "a b")


def hangs(vocabulary):
    """A trial without end."""
    return lambda kind, source: threading.Event().wait()


def computes(vocabulary):
    """A trial that never stops computing."""
    return lambda kind, source: sum(itertools.count())


def waits_if_told(vocabulary):
    """A trial that goes on until a file is there, for one source only."""

    def trial(kind, source):
        told, _, path = source.partition(" ")
        while told == "wait" and not os.path.exists(path):
            time.sleep(0.01)

    return trial


def crashes(vocabulary):
    """A trial that takes its process down."""
    return lambda kind, source: os.abort()


def grows(vocabulary):
    """A trial that wants more memory than there is."""
    return lambda kind, source: bytearray(1 << 34)


def objects(vocabulary):
    """A trial that finds something."""

    def trial(kind, source):
        raise ConstraintError(f"no good: {source}")

    return trial


def isnt_ready(vocabulary):
    """A trial that can't be made."""
    raise ConstraintError(f"no good: a vocabulary of {len(vocabulary.tokens)}")


def gets_ready_if_told(vocabulary):
    """A trial whose making takes the process down until a file is there."""
    if not os.path.exists(os.environ["READY_FILE"]):
        os.abort()
    return lambda kind, source: None


def reads_the_vocabulary(vocabulary):
    """A trial that says what it was made ready with."""

    def trial(kind, source):
        ids = [vocabulary.tokens.index(one.encode()) for one in source]
        raise ConstraintError(f"{ids} {sorted(vocabulary.eos_ids)} {dict(vocabulary.special_spellings)}")

    return trial


class Words:
    """An engine that counts what it compiles."""

    def __init__(self, name="words", rank=0, trial=None, support=SUPPORTED):
        self.compiled = []
        supports = support if callable(support) else lambda spec: support
        self.engine = ConstraintEngine(name, supports, self.compile, trial, rank)

    def compile(self, spec, tokenizer, eos_ids):
        self.compiled.append(spec)
        if "!" in spec.source:
            raise RuntimeError("a bug")
        words = [tokenizer.encode(word) for word in spec.source.split()]
        return WordList(words, eos_ids=eos_ids, vocab_size=tokenizer.vocab_size)


@pytest.fixture
def compiler_of():
    made = []

    def make(*engines, **settings):
        made.append(
            ConstraintCompiler(
                [one.engine for one in engines], TOKENIZER, TOKENIZER.eos_ids, GrammarSettings(**settings)
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_spec_is_compiled_once(compiler_of):
    words = Words()
    compiler = compiler_of(words)
    assert compiler.compile(SPEC) is compiler.compile(ConstraintSpec("words", "a b"))
    assert len(words.compiled) == 1


def test_threads_that_want_the_same_wait_for_one(compiler_of):
    words = Words()
    compiler = compiler_of(words)
    found = []
    threads = [threading.Thread(target=lambda: found.append(compiler.compile(SPEC))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(words.compiled) == 1
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize(("cache_bytes", "num_compiled"), [(1 << 20, 2), (0, 3)])
def test_what_is_kept_is_bounded_in_bytes(compiler_of, cache_bytes, num_compiled):
    words = Words()
    compiler = compiler_of(words, cache_bytes=cache_bytes)
    for source in ("a b", "c d", "a b"):
        compiler.compile(ConstraintSpec("words", source))
    assert len(words.compiled) == num_compiled


def test_a_request_opens_what_somebody_holds(compiler_of):
    compiler = compiler_of(Words(), cache_entries=1)
    held = compiler.compile(SPEC)
    compiler.compile(ConstraintSpec("words", "other"))
    assert compiler.open(a_request("r", [1], constraint=SPEC)) is not None
    assert held.engine == "words"


def test_a_request_whose_constraint_nobody_compiled_fails(compiler_of):
    with pytest.raises(ConstraintError, match="wasn't compiled"):
        compiler_of(Words()).open(a_request("r", [1], constraint=SPEC))


def test_a_request_without_a_constraint_opens_none(compiler_of):
    assert compiler_of(Words()).open(a_request("r", [1])) is None


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (hangs, "no end within 1.6 seconds"),
        (computes, "more than 0.2 seconds"),
        (crashes, "crashed"),
        (grows, "memory"),
        (objects, "no good: a b"),
        (isnt_ready, f"no good: a vocabulary of {TOKENIZER.vocab_size}"),
    ],
)
def test_what_a_trial_does_stays_in_its_process(compiler_of, trial, reason):
    words = Words(trial=trial)
    compiler = compiler_of(words, compile_seconds=0.2 if trial in (hangs, computes) else 30)
    with pytest.raises(ConstraintError, match=reason):
        compiler.compile(SPEC)
    assert words.compiled == []


def test_what_takes_its_process_down_is_refused_by_the_keyword_that_costs_most(compiler_of):
    compiler = compiler_of(Words(trial=crashes), compile_seconds=30)
    with pytest.raises(ConstraintError, match=r"crashed .*likely keyword 'multipleOf'\.$"):
        compiler.compile(ConstraintSpec("json_schema", '{"type": "integer", "multipleOf": 7}'))


def test_a_trial_has_the_models_own_vocabulary(compiler_of):
    compiler = compiler_of(Words(trial=reads_the_vocabulary))
    special = {spelling: one for spelling, one in TOKENIZER.special_spellings.items() if one in TOKENIZER.special_ids}
    told = f"{TOKENIZER.encode('ab')} {sorted(TOKENIZER.eos_ids)} {special}"
    with pytest.raises(ConstraintError, match=re.escape(told)):
        compiler.compile(ConstraintSpec("words", "ab"))


def test_a_failure_is_remembered(compiler_of):
    words = Words()
    compiler = compiler_of(words)
    for _ in range(2):
        with pytest.raises(ConstraintError, match="a bug"):
            compiler.compile(ConstraintSpec("words", "!"))
    assert len(words.compiled) == 1


def test_what_says_nothing_about_a_spec_isnt_remembered(compiler_of, tmp_path, monkeypatch):
    monkeypatch.setenv("READY_FILE", str(tmp_path / "ready"))
    compiler = compiler_of(Words(trial=gets_ready_if_told))
    with pytest.raises(ConstraintError, match="doesn't get ready"):
        compiler.compile(SPEC)
    (tmp_path / "ready").touch()
    assert compiler.compile(SPEC).engine == "words"


def test_a_hanging_trial_holds_up_nobody_else(compiler_of, tmp_path):
    compiler = compiler_of(Words(trial=waits_if_told), compile_seconds=60)
    awaited = tmp_path / "go"
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(compiler.compile, ConstraintSpec("words", f"wait {awaited}"))
        assert compiler.compile(SPEC).engine == "words"
        assert not hanging.done()
        awaited.touch()
        assert hanging.result().engine == "words"


def test_the_next_engine_stands_in_for_what_the_first_cant_do(compiler_of):
    first, second = Words("first", support=refused("keyword 'x'")), Words("second")
    compiler = compiler_of(first, second)
    assert compiler.compile(SPEC).engine == "second"
    assert first.compiled == []


def test_a_refusal_is_the_first_engines(compiler_of):
    compiler = compiler_of(Words("first", support=refused("keyword 'x'")), Words("second", support=refused("no")))
    assert compiler.supports(SPEC).reason == "keyword 'x'"


def test_a_request_may_name_its_engine(compiler_of):
    compiler = compiler_of(Words("first"), Words("second"))
    assert compiler.compile(ConstraintSpec("words", "a", engine="second")).engine == "second"
    assert "'third'" in compiler.supports(ConstraintSpec("words", "a", engine="third")).reason


def test_switched_off_nothing_is_enforced(compiler_of):
    compiler = compiler_of(Words(), enabled=False)
    assert not compiler.is_active
    assert not compiler.supports(SPEC)


def test_a_model_that_no_engine_can_bind_still_starts(compiler_of, caplog):
    compiler_of(Words(trial=objects)).warm_up()
    assert "no good" in caplog.text


LONG = ConstraintSpec("words", "a" * (MAX_QUICK_CHARS + 1))


def supports_in_another_process(spec):
    """Says against a constraint which process looked at it."""
    return refused(f"looked over in process {os.getpid()}")


def maps_much(vocabulary):
    """A trial whose making maps more than one trial may take."""
    mmap.mmap(-1, 1 << 28).close()
    return lambda kind, source: None


def test_a_long_source_is_looked_over_in_another_process(compiler_of):
    words = Words(trial=objects, support=supports_in_another_process)
    reason = compiler_of(words).supports(LONG).reason
    assert reason.startswith("looked over in process ")
    assert not reason.endswith(f" {os.getpid()}")
    assert compiler_of(words).supports(SPEC).reason.endswith(f" {os.getpid()}")


def test_an_engine_without_a_trial_looks_over_long_sources_here(compiler_of):
    words = Words(support=supports_in_another_process)
    assert compiler_of(words).supports(LONG).reason.endswith(f" {os.getpid()}")


def supports_anything(spec):
    """As its name says."""
    return SUPPORTED


def test_what_a_constraint_may_take_binds_no_other_work_of_its_process(compiler_of):
    words = Words(trial=maps_much, support=supports_anything)
    assert compiler_of(words, compile_memory_bytes=1 << 26).compile(LONG).engine == "words"
