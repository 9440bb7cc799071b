"""From a request's fields and the server's defaults to checked sampling values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla.request import SamplingParams
from phyla.sampling.defaults import SamplingDefaults
from phyla.sampling.fields import (
    checked_bool,
    checked_int,
    checked_logit_bias,
    checked_names,
    checked_number,
    checked_optional_int,
    checked_penalty,
)

if TYPE_CHECKING:
    from phyla.tokenizer import Tokenizer

DEFAULT_CONTEXT_SIZE = 20
"""Recent tokens that penalties look at."""

MOST_TOP_LOGPROBS = 20


def resolve_sampling(
    fields: Mapping[str, Any],
    defaults: SamplingDefaults,
    *,
    vocab_size: int,
    thinking: bool | None = None,
    xtc_special_ids: tuple[int, ...] = (),
    most_top_logprobs: int = MOST_TOP_LOGPROBS,
) -> SamplingParams:
    """Check every sampling field and fill in what is absent or null. Doesn't modify `fields`; others are ignored.

    Args:
        fields: JSON values by their OpenAI names.
        defaults: what absent fields get.
        vocab_size: ids that `logit_bias` may name.
        thinking: whether this turn reasons; None for a model that knows no such thing.
        xtc_special_ids: ids that XTC never removes.
        most_top_logprobs: the surface's limit.

    Raises:
        RequestError: `<field> must be of type <T>`, `... must be at least <min>`, `... must be at most <max>`.
    """
    return SamplingParams(
        temperature=checked_number(fields, "temperature", defaults.temperature_for(thinking), least=0),
        top_p=checked_number(fields, "top_p", defaults.top_p, least=0, most=1),
        top_k=checked_int(fields, "top_k", defaults.top_k, least=0),
        min_p=checked_number(fields, "min_p", 0.0, least=0, most=1),
        xtc_probability=checked_number(fields, "xtc_probability", 0.0, least=0, most=1),
        xtc_threshold=checked_number(fields, "xtc_threshold", 0.0, least=0, most=1),
        xtc_special_ids=xtc_special_ids,
        repetition_penalty=checked_penalty(
            fields, "repetition_penalty", defaults.repetition_penalty, least=0, is_factor=True
        ),
        repetition_context_size=checked_int(fields, "repetition_context_size", DEFAULT_CONTEXT_SIZE, least=0),
        presence_penalty=checked_penalty(fields, "presence_penalty", 0.0),
        presence_context_size=checked_int(fields, "presence_context_size", DEFAULT_CONTEXT_SIZE, least=0),
        frequency_penalty=checked_penalty(fields, "frequency_penalty", 0.0),
        frequency_context_size=checked_int(fields, "frequency_context_size", DEFAULT_CONTEXT_SIZE, least=0),
        logit_bias=checked_logit_bias(fields, vocab_size),
        seed=checked_optional_int(fields, "seed"),
        min_tokens=checked_int(fields, "min_tokens", 0, least=0),
        ignore_eos=checked_bool(fields, "ignore_eos"),
        num_logprobs=_num_logprobs(fields, most_top_logprobs),
        processors=checked_names(fields, "logits_processors"),
    )


def ids_xtc_keeps(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Ids that XTC never removes: end of sequence, and the newline where it is one token."""
    from phyla.tokenizer import why_no_text

    newline = [] if why_no_text(tokenizer) else tokenizer.encode("\n")
    return tuple(sorted({*eos_ids, *tokenizer.eos_ids, *(newline if len(newline) == 1 else ())}))


def _num_logprobs(fields: Mapping[str, Any], most: int) -> int | None:
    """`top_logprobs` above 0 asks for them whatever `logprobs` says; -1 is unset."""
    wants_chosen = checked_bool(fields, "logprobs")
    num_top = -1 if fields.get("top_logprobs") == -1 else checked_int(fields, "top_logprobs", -1, least=0, most=most)
    if num_top > 0:
        return num_top
    return 0 if wants_chosen else None
