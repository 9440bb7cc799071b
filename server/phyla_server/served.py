"""The model that is served, as far as HTTP needs to know it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phyla import Settings
from phyla.engine import EngineFront
from phyla.model.facts import ModelFacts
from phyla.output import CallSyntax, OutputParser, OutputParserFactory, ParserContext, choose_parser
from phyla.plugins import by_name
from phyla.request import Rendered
from phyla.sampling.resolve import ids_xtc_keeps
from phyla.tokenizer import Tokenizer, why_no_text
from phyla.tokenizer.render import PromptRenderer

from phyla_server.settings import ServerSettings

if TYPE_CHECKING:
    from phyla.draft.compiling import ConstraintCompiler
    from phyla.library import Model
    from phyla.plan import Plan
    from phyla.plugins import PluginManager


@dataclass(frozen=True)
class ServedModel:
    """One loaded model behind its engine's front."""

    model_id: str
    facts: ModelFacts
    tokenizer: Tokenizer
    renderer: PromptRenderer
    engine: EngineFront
    parser: OutputParserFactory
    reasoning: tuple[str, str] | None = None
    """Spellings around reasoning, or None for a model without."""

    call_syntax: CallSyntax | None = None
    """How its dialect writes calls, where that is known."""

    constraints: ConstraintCompiler | None = None
    """What enforces the form of answers."""

    kv_quant: Mapping[str, Any] = field(default_factory=dict)
    """How its keys and values are stored, for `/stats`."""

    method: str = "none"
    """What drafts for it, by name."""

    xtc_special_ids: tuple[int, ...] = ()
    """Ids that XTC never removes: end of sequence, and the newline where it is one token."""

    @property
    def chats(self) -> bool:
        """Whether it can be sent a conversation."""
        return self.renderer.has_template and why_no_text(self.tokenizer) is None

    @property
    def offers_tools(self) -> bool:
        """Whether it learns of tools and its calls are read. Asks the template once: not on the event loop."""
        return self.chats and self.parser.reads_calls and self.renderer.renders_tools

    @property
    def enforces_constraints(self) -> bool:
        """Whether structured output can be promised."""
        return self.constraints is not None and self.constraints.is_active

    def create_parser(self, rendered: Rendered, *, tells_whole_calls: bool = False) -> OutputParser:
        """A fresh parser for one sample that follows this prompt."""
        start, end = self.reasoning or (None, None)
        context = ParserContext(
            tools=rendered.tools,
            starts_in_reasoning=rendered.starts_in_reasoning,
            reasoning_start=start,
            reasoning_end=end,
            tells_whole_calls=tells_whole_calls,
        )
        return self.parser.create(context)


def served_by(model: Model, manager: PluginManager, settings: Settings) -> ServedModel:
    """A model that the library loaded, with the dialects of the plugins."""
    return served_model(
        model_id=model.plan.model_id,
        facts=model.facts,
        tokenizer=model.tokenizer,
        renderer=model.renderer,
        engine=model.engine,
        template=model.checkpoint.chat_template,
        parsers=[one.value for one in by_name(manager.output_parsers(settings), "output parser").values()],
        parser_name=settings.section(ServerSettings).output_parser,
        constraints=model.constraints,
        kv_quant=_storage(model.plan),
        method=model.plan.method.name,
    )


def served_model(
    *,
    model_id: str,
    facts: ModelFacts,
    tokenizer: Tokenizer,
    renderer: PromptRenderer,
    engine: EngineFront,
    template: str | None,
    parsers: Iterable[OutputParserFactory] = (),
    parser_name: str | None = None,
    constraints: ConstraintCompiler | None = None,
    kv_quant: Mapping[str, Any] | None = None,
    method: str = "none",
) -> ServedModel:
    """Work out what the parts say about how answers are read.

    Raises:
        UsageError: there is no parser of that name, or two claim the template.
    """
    parser = choose_parser(parsers, asked=parser_name, family_default=facts.output_parser, template=template)
    return ServedModel(
        model_id=model_id,
        facts=facts,
        tokenizer=tokenizer,
        renderer=renderer,
        engine=engine,
        parser=parser,
        reasoning=_reasoning(facts, parser, template),
        call_syntax=None if parser.call_syntax is None else parser.call_syntax(template),
        constraints=constraints,
        kv_quant=kv_quant or {},
        method=method,
        xtc_special_ids=ids_xtc_keeps(tokenizer, facts.eos_ids),
    )


def _storage(plan: Plan) -> dict[str, Any]:
    """The scheme, how many layers store under which, and how many see everything or a window."""
    kinds = Counter(layer.kind for layer in plan.facts.layout)
    return {
        "mode": plan.dtype if plan.kv_scheme.name == "plain" else plan.kv_scheme.name,
        "layers": dict(Counter(plan.layer_schemes)),
        "attention": {"global": kinds["full"], "sliding_window": kinds["sliding"]},
    }


def _reasoning(facts: ModelFacts, parser: OutputParserFactory, template: str | None) -> tuple[str, str] | None:
    """The family's markers, else those of the dialect that the template writes."""
    if facts.reasoning is not None:
        return facts.reasoning.start, facts.reasoning.end
    shown = (pair for pair in parser.reasoning if template is not None and all(marker in template for marker in pair))
    return next(shown, None)
