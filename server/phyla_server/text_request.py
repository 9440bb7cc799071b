"""From the body of a text completion to requests for the engine, one a prompt."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from phyla.request import Rendered, Request
from phyla.sampling.resolve import resolve_sampling
from phyla.tokenizer import why_no_text

from phyla_server.adapter import require_base_model
from phyla_server.affinity import read_session_id, read_trace_id
from phyla_server.asked import AskedConstraint, Unenforced
from phyla_server.body import parse_object
from phyla_server.chat_request import MAX_SAMPLES, read_include_usage
from phyla_server.constraints import read_constraint
from phyla_server.ending_fields import read_max_tokens, read_stop
from phyla_server.errors import bad_request
from phyla_server.fields import Fields
from phyla_server.incoming import Incoming
from phyla_server.logprobs import MAX_TOP, MAX_TOP_PEER, LogprobsShape, wants_token_ids, with_text_logprobs
from phyla_server.served import ServedModel
from phyla_server.serving import Serving
from phyla_server.text_encoder import TextShape

MAX_PROMPTS = 64


@dataclass(frozen=True)
class PreparedText:
    """Ready to be submitted."""

    requests: tuple[Request, ...]
    shape: TextShape
    stream: bool
    asked: AskedConstraint | None = None
    """To be compiled before the requests are submitted."""


def prepare_text(serving: Serving, incoming: Incoming, unenforced: Unenforced | None = None) -> PreparedText:
    """Check and tokenise. Runs in a preparation thread.

    Args:
        serving: the server.
        incoming: the request.
        unenforced: why its constraint is left out.

    Raises:
        ApiError, PhylaError: why it can't be served.
    """
    fields = Fields(parse_object(incoming.raw))
    require_base_model(fields)
    model = serving.model
    is_peer = serving.settings.compat == "mlx-lm"
    sampling = resolve_sampling(
        fields.body if is_peer else with_text_logprobs(fields),
        serving.defaults,
        vocab_size=model.facts.vocab_size,
        xtc_special_ids=model.xtc_special_ids,
        most_top_logprobs=MAX_TOP_PEER if is_peer else MAX_TOP,
    )
    num_logprobs = sampling.num_logprobs
    echo = fields.flag("echo") or False
    _refuse_unsupported(fields, num_logprobs, echo)
    prompts = [_render(model, prompt) for prompt in _prompts(fields.body.get("prompt"))]
    num_samples = fields.integer("n", least=1, most=MAX_SAMPLES) or 1
    asked = read_constraint(fields) if unenforced is None else None
    completion_id = f"cmpl-{uuid.uuid4().hex}"
    common = Request(
        request_id=completion_id,
        rendered=prompts[0],
        sampling=sampling,
        max_tokens=read_max_tokens(fields),
        stop=read_stop(fields),
        num_samples=num_samples,
        constraint=None if asked is None else asked.spec,
        owner=incoming.caller.owner,
        session_id=read_session_id(fields.body, incoming.headers),
        trace_id=read_trace_id(incoming.headers),
    )
    requests = tuple(
        model.engine.recognised(
            replace(
                common,
                request_id=completion_id if len(prompts) == 1 else f"{completion_id}-{index}",
                rendered=rendered,
            )
        )
        for index, rendered in enumerate(prompts)
    )
    shape = TextShape(
        completion_id=completion_id,
        model_id=model.model_id,
        first_index={request.request_id: index * num_samples for index, request in enumerate(requests)},
        echoes=[_spelt(model, rendered) if echo else "" for rendered in prompts for _ in range(num_samples)],
        logprobs=None
        if num_logprobs is None
        else LogprobsShape(model.tokenizer, num_top=num_logprobs, is_peer=is_peer, as_ids=wants_token_ids(fields)),
        include_usage=read_include_usage(fields),
        gives_ids=why_no_text(model.tokenizer) is not None,
    )
    return PreparedText(requests, shape, fields.flag("stream") or False, asked)


def _refuse_unsupported(fields: Fields, num_logprobs: int | None, echo: bool) -> None:
    if fields.body.get("suffix"):
        raise bad_request("suffix is not supported: no model here was trained to fill in the middle", "suffix")
    if echo and num_logprobs is not None:
        raise bad_request("echo with logprobs is not supported: prompt tokens have no log-probabilities here", "echo")
    best_of = fields.integer("best_of", least=1)
    if best_of is not None and best_of != (fields.integer("n") or 1):
        raise bad_request("best_of other than n is not supported", "best_of")


def _prompts(prompt: object) -> list[str | list[int]]:
    """A string, token ids, or an array of either."""
    if isinstance(prompt, str) and prompt:
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _bad_prompt()
    if all(_is_id(one) for one in prompt):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"prompt must hold at most {MAX_PROMPTS} prompts", "prompt")
    if all(isinstance(one, str) and one for one in prompt):
        return prompt
    if all(isinstance(one, list) and one and all(_is_id(token) for token in one) for one in prompt):
        return prompt
    raise _bad_prompt()


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad_prompt() -> Exception:
    return bad_request("prompt must be a non-empty string, token ids, or a non-empty array of either", "prompt")


def _render(model: ServedModel, prompt: str | list[int]) -> Rendered:
    if isinstance(prompt, str):
        return model.renderer.render_text(prompt)
    return model.renderer.render_ids(prompt)


def _spelt(model: ServedModel, rendered: Rendered) -> str:
    reason = why_no_text(model.tokenizer)
    if reason is not None:
        raise bad_request(f"echo repeats the prompt as text. {reason}", "echo")
    return rendered.text if rendered.text is not None else model.tokenizer.decode(rendered.ids)
