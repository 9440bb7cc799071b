"""From the body of a chat request to a request for the engine."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from phyla.request import Request

from phyla_server.affinity import read_session_id, read_trace_id
from phyla_server.body import parse_object
from phyla_server.chat_encoder import ChatShape
from phyla_server.constraints import read_constraint
from phyla_server.fields import Fields
from phyla_server.incoming import Incoming
from phyla_server.limits import cap_tokens
from phyla_server.logprobs import LogprobsShape, read_chat_logprobs
from phyla_server.messages import read_messages
from phyla_server.sampling_fields import read_max_tokens, read_sampling, read_stop
from phyla_server.serving import Serving, xtc_special_ids
from phyla_server.thinking import read_thinking
from phyla_server.tools import read_tools

MAX_SAMPLES = 8


@dataclass(frozen=True)
class PreparedChat:
    """Ready to be submitted."""

    request: Request
    shape: ChatShape
    stream: bool


def prepare_chat(serving: Serving, incoming: Incoming) -> PreparedChat:
    """Check, render and tokenise. Runs in a preparation thread.

    Raises:
        ApiError, PhylaError: why it can't be served.
    """
    fields = Fields(parse_object(incoming.raw))
    model = serving.model
    messages = read_messages(fields.body.get("messages"), model.model_id)
    peer_shape = serving.settings.compat == "mlx-lm"
    num_logprobs = read_chat_logprobs(fields, peer_shape=peer_shape)
    thinking = read_thinking(fields, serving.settings.thinking, model.facts.default_thinking)
    tools = read_tools(fields)
    sampling = read_sampling(
        fields,
        serving.defaults,
        vocab_size=model.facts.vocab_size,
        xtc_special_ids=xtc_special_ids(model.tokenizer, model.facts.eos_ids),
        thinking=thinking.enabled,
        num_logprobs=num_logprobs,
    )
    max_tokens = read_max_tokens(fields)
    num_samples = fields.integer("n", least=1, most=MAX_SAMPLES) or 1
    constraint = read_constraint(fields, enforced=model.enforces_constraints)
    stop = read_stop(fields)
    stream = fields.flag("stream") or False
    include_usage = read_include_usage(fields)
    rendered = model.renderer.render_chat(messages, tools=tools, template_args=thinking.template_args)
    completion_id = f"chatcmpl-{uuid.uuid4().hex}"
    request = Request(
        request_id=completion_id,
        rendered=rendered,
        sampling=sampling,
        max_tokens=cap_tokens(rendered, max_tokens, model.facts.context_limit),
        stop=stop,
        num_samples=num_samples,
        constraint=constraint,
        owner=incoming.caller.owner,
        session_id=read_session_id(fields.body, incoming.headers),
        trace_id=read_trace_id(incoming.headers),
    )
    shape = ChatShape(
        completion_id=completion_id,
        model_id=model.model_id,
        num_samples=num_samples,
        create_parser=lambda: serving.parser_for(rendered),
        logprobs=None
        if num_logprobs is None
        else LogprobsShape(model.tokenizer, num_top=num_logprobs, peer_shape=peer_shape),
        include_usage=include_usage,
    )
    return PreparedChat(request, shape, stream)


def read_include_usage(fields: Fields) -> bool:
    options = fields.mapping("stream_options")
    return options is not None and (Fields(options).flag("include_usage") or False)
