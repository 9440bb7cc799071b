"""A model that says what a test tells it to: for engine, server and parser tests without any arithmetic.

    tokenizer = CharacterTokenizer()
    binding = scripted_binding(tokenizer, replies(tokenizer, {"hello": "Hi there."}))
    with running(scripted_spec(binding, tokenizer)) as (engine, log): ...

A `Script` maps everything a row has read so far to the next token id; it may raise, or answer `NAN` for a row of NaN
logits. `on_step` is called before every forward with the step's width and histories: it may raise, block on an Event,
or move a fake clock, so that no test ever sleeps.
"""

from phyla.testing.scripted.binding import (
    NAN,
    OnStep,
    Script,
    ScriptedBinding,
    StepSeen,
    scripted_binding,
    scripted_facts,
)
from phyla.testing.scripted.scripts import repeat, replies
from phyla.testing.scripted.tokenizer import CharacterTokenizer

__all__ = [
    "NAN",
    "CharacterTokenizer",
    "OnStep",
    "Script",
    "ScriptedBinding",
    "StepSeen",
    "repeat",
    "replies",
    "scripted_binding",
    "scripted_facts",
]
