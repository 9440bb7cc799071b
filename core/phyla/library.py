"""Phyla as a library: `phyla.load(reference)` gives a model that generates, streams and chats.

import phyla

with phyla.load("org/name", batch=4) as model:
    print(model.chat([{"role": "user", "content": "Hello!"}], max_tokens=100).text)
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from phyla.backend.detect import detect
from phyla.backend.settings import BackendSettings
from phyla.engine.answers import Answers, Completion, Piece
from phyla.errors import RequestError, UsageError
from phyla.plugins import PluginManager, discover
from phyla.plugins.settings import PluginsSettings
from phyla.registry import ModelsSettings, fetched
from phyla.request import Rendered, Request
from phyla.sampling.defaults import GREEDY, SamplingDefaults
from phyla.sampling.fields import checked_int, checked_optional_int
from phyla.sampling.resolve import ids_xtc_keeps, resolve_sampling
from phyla.selection import Parts, SelectionSettings, resolve, select
from phyla.settings import Settings, flags_from_options, load_settings

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.draft.compiling import ConstraintCompiler, Enforced
    from phyla.engine import EngineFront
    from phyla.model import ModelFacts
    from phyla.plan import Plan
    from phyla.tokenizer import Tokenizer
    from phyla.tokenizer.render import PromptRenderer

Prompt = str | Sequence[int] | Rendered
CLOSE_SECONDS = 120.0

_log = logging.getLogger(__name__)


def load(reference: str, **options: Any) -> Model:
    """Load a model and start its engine.

    Args:
        reference: a model folder, a GGUF file, a hub id, which is downloaded if it isn't here, or `starter`.
        options: settings by the names of their flags: `batch=4` is `--batch 4`, `kv_scheme="affine:4"` is
            `--kv-scheme affine:4`. Variables and `phyla.toml` count too, as on the command line.

    Raises:
        UsageError: an option that doesn't exist or can't be honoured; says what to do.
        CheckpointError: the reference can't be used, or no family knows it.
    """
    flags = flags_from_options(options)
    chosen = load_settings((PluginsSettings,), flags=flags, partial=True).section(PluginsSettings)
    manager = discover(chosen.disable, chosen.no_plugins)
    settings = load_settings(manager.settings_sections(), flags=flags, absent=chosen.disable)
    models = settings.section(ModelsSettings)
    reference = fetched(reference, models, _log.info)
    if (drafter := settings.section(SelectionSettings).draft_model) is not None:
        fetched(drafter, models, _log.info)
    return load_with(reference, manager, settings)


def load_with(reference: str, manager: PluginManager, settings: Settings) -> Model:
    """As `load`, with plugins and settings that are there already."""
    computing = settings.section(BackendSettings)
    backend = detect(computing.blas, computing.blas_threads)
    plan = select(reference, manager, settings, backend)
    return start(resolve(plan, manager, settings), manager, settings)


def start(parts: Parts, manager: PluginManager, settings: Settings) -> Model:
    """Start the engine of a plan that was made; loads the weights on the engine's thread."""
    from phyla.assembly import constraints_of, engine_spec, renderer_of
    from phyla.engine.engine import Engine
    from phyla.tokenizer import why_no_text

    tokenizer = parts.checkpoint.tokenizer()
    if (reason := why_no_text(tokenizer)) is not None:
        _log.warning("%s", reason)
    renderer = renderer_of(parts, tokenizer)
    constraints = constraints_of(parts, tokenizer, settings)
    engine = Engine(engine_spec(parts, tokenizer, constraints, manager, settings))
    try:
        engine.start()
    except BaseException:
        renderer.close()
        constraints.close()
        raise
    return Model(parts, tokenizer, renderer, engine, manager, constraints)


class Model:
    """A loaded model. Thread-safe; requests from several threads share its steps."""

    def __init__(
        self,
        parts: Parts,
        tokenizer: Tokenizer,
        renderer: PromptRenderer,
        engine: EngineFront,
        manager: PluginManager,
        constraints: ConstraintCompiler,
    ) -> None:
        self.parts = parts
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.engine = engine
        self.manager = manager
        self.constraints = constraints
        self._answers = Answers(engine)
        self._numbers = itertools.count()
        self._xtc_special_ids = ids_xtc_keeps(tokenizer, parts.plan.facts.eos_ids)

    @property
    def plan(self) -> Plan:
        """What was chosen, by whom and why."""
        return self.parts.plan

    @property
    def facts(self) -> ModelFacts:
        return self.parts.plan.facts

    @property
    def checkpoint(self) -> Checkpoint:
        return self.parts.checkpoint

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Continue a prompt: text, token ids, or something rendered.

        Args:
            prompt: where to go on from.
            options: `max_tokens`, `stop` (a string or several), `num_samples`, and the sampling fields of the
                OpenAI API (`temperature`, `top_p`, `top_k`, `min_p`, `seed`, `logprobs`, `top_logprobs`, ...).
                Greedy unless a temperature is given. `constraint` is a `phyla.request.ConstraintSpec`: what the answer
                must look like.

        Raises:
            RequestError: the request can't be served.
            QueueFull: too many are waiting.
            EngineStopped: the engine is gone.
        """
        return self._wait(self._request(self._rendered(prompt), options))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """As `generate`, token by token as they come. Leaving the loop early cancels the request.

        The last piece has the finish reason and the usage.
        """
        return self._stream(self._request(self._rendered(prompt), options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: messages with `role` and `content`. `tools` and `template_args` go to the template."""
        return self._wait(self._request(*self._chat(messages, options)))

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[Piece]:
        """As `chat`, token by token."""
        return self._stream(self._request(*self._chat(messages, options)))

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Let running requests end, then stop the engine. Safe to call twice."""
        self.engine.close(timeout_seconds)
        self.renderer.close()
        self.constraints.close()
        self.manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait(self, request: Request) -> Completion:
        return self._answers.wait(request, self._enforced(request))

    def _stream(self, request: Request) -> Iterator[Piece]:
        return self._answers.stream(request, self._enforced(request))

    def _enforced(self, request: Request) -> Enforced | None:
        return None if request.constraint is None else self.constraints.compile(request.constraint)

    def _rendered(self, prompt: Prompt) -> Rendered:
        if isinstance(prompt, Rendered):
            return prompt
        if isinstance(prompt, str):
            return self.renderer.render_text(prompt)
        if any(isinstance(one, Mapping) for one in prompt):
            raise RequestError("The prompt is a conversation. Use `chat`, or `stream_chat`: they apply the template.")
        return self.renderer.render_ids(prompt)

    def _chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[Rendered, Mapping[str, Any]]:
        rest = dict(options)
        tools, template_args = rest.pop("tools", ()), rest.pop("template_args", {})
        return self.renderer.render_chat(messages, tools=tools, template_args=template_args), rest

    def _request(self, rendered: Rendered, options: Mapping[str, Any]) -> Request:
        fields = dict(options)
        max_tokens = checked_optional_int(fields, "max_tokens", least=1)
        num_samples = checked_int(fields, "num_samples", 1, least=1)
        stop, constraint = fields.pop("stop", ()), fields.pop("constraint", None)
        defaults: SamplingDefaults = fields.pop("defaults", GREEDY)
        if unknown := sorted(set(fields) - SAMPLING_OPTIONS - {"max_tokens", "num_samples"}):
            raise UsageError(f"There is no option {', '.join(unknown)}. Known: {', '.join(sorted(OPTIONS))}.")
        return Request(
            request_id=f"library-{next(self._numbers)}",
            rendered=rendered,
            sampling=resolve_sampling(
                fields, defaults, vocab_size=self.facts.vocab_size, xtc_special_ids=self._xtc_special_ids
            ),
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            num_samples=num_samples,
            constraint=constraint,
        )


SAMPLING_OPTIONS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "xtc_probability",
        "xtc_threshold",
        "repetition_penalty",
        "repetition_context_size",
        "presence_penalty",
        "presence_context_size",
        "frequency_penalty",
        "frequency_context_size",
        "logit_bias",
        "seed",
        "min_tokens",
        "ignore_eos",
        "logprobs",
        "top_logprobs",
        "logits_processors",
    }
)
OPTIONS = SAMPLING_OPTIONS | {"max_tokens", "num_samples", "stop", "constraint", "tools", "template_args"}
