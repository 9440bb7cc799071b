"""From the body of a chat request to a request for the engine."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from phyla.request import Request
from phyla.sampling.resolve import resolve_sampling

from phyla_server.adapter import require_base_model
from phyla_server.affinity import read_session_id, read_trace_id
from phyla_server.asked import AskedConstraint, Unenforced, with_wish
from phyla_server.body import parse_object
from phyla_server.chat_encoder import ChatShape
from phyla_server.constraints import read_constraint
from phyla_server.ending_fields import read_max_tokens, read_stop
from phyla_server.errors import bad_request
from phyla_server.fields import Fields
from phyla_server.incoming import Incoming
from phyla_server.logprobs import MAX_TOP, MAX_TOP_PEER, LogprobsShape, wants_token_ids
from phyla_server.messages import read_messages
from phyla_server.served import ServedModel
from phyla_server.serving import Serving
from phyla_server.thinking import read_thinking
from phyla_server.tool_constraint import with_calls
from phyla_server.tools import ToolUse, read_tools

MAX_SAMPLES = 8


@dataclass(frozen=True)
class PreparedChat:
    """Ready to be submitted."""

    request: Request
    shape: ChatShape
    stream: bool
    asked: AskedConstraint | None = None
    """To be compiled before the request is submitted."""


def prepare_chat(serving: Serving, incoming: Incoming, unenforced: Unenforced | None = None) -> PreparedChat:
    """Check, render and tokenise. Runs in a preparation thread.

    Args:
        serving: the server.
        incoming: the request.
        unenforced: why the constraint is to be asked for in words only.

    Raises:
        ApiError, PhylaError: why it can't be served.
    """
    fields = Fields(parse_object(incoming.raw))
    require_base_model(fields)
    _require_text(fields)
    model = serving.model
    messages = read_messages(fields.body.get("messages"), model.model_id)
    is_peer = serving.settings.compat == "mlx-lm"
    thinking = read_thinking(fields, serving.settings.thinking, model.facts.default_thinking)
    use = read_tools(fields)
    _require_rendered_tools(use, model)
    sampling = resolve_sampling(
        fields.body,
        serving.defaults,
        vocab_size=model.facts.vocab_size,
        thinking=thinking.enabled,
        xtc_special_ids=model.xtc_special_ids,
        most_top_logprobs=MAX_TOP_PEER if is_peer else MAX_TOP,
    )
    max_tokens, stop = read_max_tokens(fields), read_stop(fields)
    num_samples = fields.integer("n", least=1, most=MAX_SAMPLES) or 1
    asked = read_constraint(fields)
    if unenforced is None:
        asked = with_calls(asked, use, model)
    else:
        messages, asked = with_wish(messages, asked, use.must_call), None
    stream, include_usage = fields.flag("stream") or False, read_include_usage(fields)
    rendered = model.renderer.render_chat(messages, tools=use.tools, template_args=thinking.template_args)
    completion_id = f"chatcmpl-{uuid.uuid4().hex}"
    request = Request(
        request_id=completion_id,
        rendered=rendered,
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        num_samples=num_samples,
        constraint=None if asked is None else asked.spec,
        owner=incoming.caller.owner,
        session_id=read_session_id(fields.body, incoming.headers),
        trace_id=read_trace_id(incoming.headers),
    )
    num_top, as_ids = sampling.num_logprobs, wants_token_ids(fields)
    shape = ChatShape(
        completion_id=completion_id,
        model_id=model.model_id,
        num_samples=num_samples,
        create_parser=lambda: model.create_parser(rendered, tells_whole_calls=not stream),
        most_calls=None if use.is_parallel else 1,
        logprobs=None
        if num_top is None
        else LogprobsShape(model.tokenizer, num_top=num_top, is_peer=is_peer, as_ids=as_ids),
        include_usage=include_usage,
    )
    return PreparedChat(model.engine.recognised(request), shape, stream, asked)


def _require_text(fields: Fields) -> None:
    """Refuse answers in sound: text in its place would be an answer to another question."""
    asked = fields.array("modalities") or ()
    if any(one != "text" for one in asked):
        raise bad_request("modalities must be ['text']: no model here answers in anything else", "modalities")


def _require_rendered_tools(use: ToolUse, model: ServedModel) -> None:
    """Refuse tools that the model would never hear of; without any template, rendering has its own complaint."""
    if use.tools and model.renderer.has_template and not model.renderer.renders_tools:
        raise bad_request(
            "this model can't be offered tools: its chat template leaves them out. Send none (or tool_choice 'none'), "
            "or serve the model with a chat_template.jinja that renders tools",
            "tools",
            "tools_unsupported",
        )


def read_include_usage(fields: Fields) -> bool:
    options = fields.mapping("stream_options")
    return options is not None and (Fields(options).flag("include_usage") or False)
