"""Every dialect by name, with the signs in a chat template that give it away.

Ranks keep mlx-lm's order of first hit: a template with the signs of two dialects gets the same one there and here.
"""

from __future__ import annotations

from collections.abc import Callable

from phyla.output import OutputParser, OutputParserFactory, ParserContext

from phyla_dialects.answer import AnswerParser, CallGrammar
from phyla_dialects.gemma import GEMMA_SPECIALS, gemma_calls
from phyla_dialects.glm import glm_calls
from phyla_dialects.hermes import hermes_calls
from phyla_dialects.minicpm import minicpm_calls
from phyla_dialects.mistral import mistral_calls
from phyla_dialects.qwen import qwen_calls
from phyla_dialects.written import (
    gemma_syntax,
    glm_syntax,
    hermes_syntax,
    minicpm_syntax,
    mistral_syntax,
    qwen_syntax,
)


def _creates(calls: CallGrammar | None, specials: tuple[str, ...] = ()) -> Callable[[ParserContext], OutputParser]:
    def create(context: ParserContext) -> OutputParser:
        return AnswerParser(context, calls, specials)

    return create


def _is_gemma(template: str) -> bool:
    return "<|tool_call>" in template and "<tool_call|>" in template


def _is_glm(template: str) -> bool:
    return "<arg_key>" in template


def _is_qwen(template: str) -> bool:
    return "<tool_call>\n<function=" in template or "<tool_call>\\n<function=" in template


def _is_minicpm(template: str) -> bool:
    return '<function name="' in template and '<param name="' in template


def _is_mistral(template: str) -> bool:
    return "[TOOL_CALLS]" in template


def _is_hermes(template: str) -> bool:
    return "<tool_call>" in template


DIALECTS = (
    OutputParserFactory(
        name="gemma",
        create=_creates(gemma_calls, GEMMA_SPECIALS),
        matches_template=_is_gemma,
        rank=60,
        reasoning=(("<|channel>", "<channel|>"),),
        call_syntax=gemma_syntax,
        description="Sentinel tokens around call:name{...}; reasoning in a channel",
    ),
    OutputParserFactory(
        name="glm",
        create=_creates(glm_calls),
        matches_template=_is_glm,
        rank=50,
        call_syntax=glm_syntax,
        description="<tool_call>name with <arg_key> and <arg_value> pairs",
    ),
    OutputParserFactory(
        name="qwen",
        create=_creates(qwen_calls),
        matches_template=_is_qwen,
        rank=40,
        call_syntax=qwen_syntax,
        description="<tool_call><function=name> with <parameter=key> values",
    ),
    OutputParserFactory(
        name="minicpm",
        create=_creates(minicpm_calls),
        matches_template=_is_minicpm,
        rank=30,
        call_syntax=minicpm_syntax,
        description='<function name="..."> with <param name="..."> values',
    ),
    OutputParserFactory(
        name="mistral",
        create=_creates(mistral_calls),
        matches_template=_is_mistral,
        rank=20,
        reasoning=(("[THINK]", "[/THINK]"), ("<think>", "</think>")),
        call_syntax=mistral_syntax,
        description="[TOOL_CALLS] and a JSON array, or name[ARGS]{...}",
    ),
    OutputParserFactory(
        name="hermes",
        create=_creates(hermes_calls),
        matches_template=_is_hermes,
        rank=10,
        call_syntax=hermes_syntax,
        description='<tool_call>{"name": ..., "arguments": ...}</tool_call>',
    ),
    OutputParserFactory(
        name="plain",
        create=_creates(None),
        matches_template=lambda template: True,
        rank=0,
        reads_calls=False,
        description="Reasoning tags only; calls are text",
    ),
)
