"""Sampling fields of a request, with the defaults of the server and of the model behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phyla.request import SamplingParams

from phyla_server.errors import bad_request
from phyla_server.fields import Fields

DEFAULT_TEMPERATURE = 0.7
DEFAULT_CONTEXT_SIZE = 20
MAX_CONTEXT_SIZE = 1 << 30
MAX_STOP_STRINGS = 256
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True)
class SamplingDefaults:
    """What applies where a request is silent: the server's flags, then the model's generation config."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    generation: Mapping[str, float] = field(default_factory=dict)

    def temperature_for(self, thinking: bool | None) -> float:
        """Turns without thinking are capped at 0.7, unless a flag says otherwise."""
        if self.temperature is not None:
            return self.temperature
        value = float(self.generation.get("temperature", DEFAULT_TEMPERATURE))
        return min(value, DEFAULT_TEMPERATURE) if thinking is False else value

    def share(self, name: str, flag: float | None) -> float:
        return flag if flag is not None else float(self.generation.get(name, 0.0))


def read_sampling(
    fields: Fields,
    defaults: SamplingDefaults,
    *,
    vocab_size: int,
    xtc_special_ids: tuple[int, ...] = (),
    thinking: bool | None = None,
    num_logprobs: int | None = None,
) -> SamplingParams:
    """The request's values, checked.

    Raises:
        ApiError: 400 naming the field, its type or its range.
    """
    temperature = fields.number("temperature", least=0)
    top_p = fields.number("top_p", least=0, most=1)
    top_k = fields.integer("top_k", least=0)
    penalty = fields.number("repetition_penalty", least=0)
    seed = fields.integer("seed", least=MIN_SEED, most=MAX_SEED)
    return SamplingParams(
        temperature=defaults.temperature_for(thinking) if temperature is None else temperature,
        top_p=defaults.share("top_p", defaults.top_p) if top_p is None else top_p,
        top_k=min(int(defaults.share("top_k", defaults.top_k)) if top_k is None else top_k, vocab_size),
        min_p=fields.number("min_p", least=0, most=1) or 0.0,
        xtc_probability=fields.number("xtc_probability", least=0, most=1) or 0.0,
        xtc_threshold=fields.number("xtc_threshold", least=0, most=1) or 0.0,
        xtc_special_ids=xtc_special_ids,
        repetition_penalty=defaults.share("repetition_penalty", None) if penalty is None else penalty,
        repetition_context_size=_context_size(fields, "repetition_context_size"),
        presence_penalty=fields.number("presence_penalty") or 0.0,
        presence_context_size=_context_size(fields, "presence_context_size"),
        frequency_penalty=fields.number("frequency_penalty") or 0.0,
        frequency_context_size=_context_size(fields, "frequency_context_size"),
        logit_bias=_logit_bias(fields, vocab_size),
        # Negative seeds are folded into 64 bits: every client's seed names one stream.
        seed=None if seed is None else seed % (1 << 64),
        min_tokens=min(fields.integer("min_tokens", least=0) or 0, MAX_CONTEXT_SIZE),
        ignore_eos=fields.flag("ignore_eos") or False,
        num_logprobs=num_logprobs,
    )


def read_max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens`, else `max_tokens`, else none: the engine then applies `--max-tokens`."""
    newer = fields.integer("max_completion_tokens", least=1)
    older = fields.integer("max_tokens", least=1)
    return newer if newer is not None else older


def read_stop(fields: Fields) -> tuple[str, ...]:
    """`stop` as one string or several; entries that are empty or no strings are dropped."""
    value = fields.body.get("stop")
    entries = value if isinstance(value, list) else [value]
    strings = tuple(one for one in entries if isinstance(one, str) and one)
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_request(f"stop must hold at most {MAX_STOP_STRINGS} strings", "stop")
    return strings


def _context_size(fields: Fields, name: str) -> int:
    size = fields.integer(name, least=0)
    return DEFAULT_CONTEXT_SIZE if size is None else min(size, MAX_CONTEXT_SIZE)


def _logit_bias(fields: Fields, vocab_size: int) -> dict[int, float]:
    value = fields.body.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request("logit_bias must be a dict of int to float", "logit_bias")
    try:
        bias = {int(key): _bias_value(one) for key, one in value.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_request("logit_bias must be a dict of int to float", "logit_bias") from error
    foreign = next((token_id for token_id in bias if not 0 <= token_id < vocab_size), None)
    if foreign is not None:
        raise bad_request(f"logit_bias names token {foreign}; ids run from 0 to {vocab_size - 1}", "logit_bias")
    return bias


def _bias_value(value: object) -> float:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number
