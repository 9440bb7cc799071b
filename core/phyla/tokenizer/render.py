"""From chat messages, raw text or ids to the prompt the engine gets."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.errors import ContextOverflow, PhylaError, RequestError, TemplateError, TokenizerError
from phyla.request.rendered import Rendered
from phyla.tokenizer.abilities import TemplateAbilities
from phyla.tokenizer.absent import why_no_text
from phyla.tokenizer.guard import CleanText, SpellingGuard, without_guards
from phyla.tokenizer.literal import longest_match
from phyla.tokenizer.messages import Message, normalise_messages, plain_data, plain_text
from phyla.tokenizer.sandbox import RenderedText, TemplateLimits, TemplateSandbox
from phyla.tokenizer.tokenizer import Tokenizer

THINKING_ARG = "enable_thinking"
RESERVED_ARGS = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "namespace", "dict", "range"}
    | {"loop", "self", "super", "caller", "varargs", "kwargs", "cycler", "joiner", "lipsum"}
)
THINK_TAGS = ("<think>", "</think>")

_NEXT_TURN: tuple[Message, ...] = ({"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"})


class PromptRenderer:
    """Renders prompts for one model. Thread-safe; blocks while a template runs, so call it off the event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        *,
        reasoning: tuple[str, str] | None = None,
        default_thinking: bool | None = None,
        limits: TemplateLimits | None = None,
        num_workers: int = 2,
        context_limit: int | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            tokenizer: of the model.
            template: its chat template; None renders raw text and ids only.
            reasoning: spellings around reasoning; None takes think tags where the template writes them.
            default_thinking: `enable_thinking` where a request doesn't say; None leaves it to the template.
            limits: what one rendering may take.
            num_workers: templates rendered at the same time.
            context_limit: tokens that a prompt must stay under; a text that must have more isn't even encoded.
        """
        self._tokenizer = tokenizer
        self._context_limit = context_limit
        self._sandbox = None if template is None else TemplateSandbox(template, limits, num_workers)
        self._abilities = TemplateAbilities(lambda messages, tools: self._run([self._context(messages, tools)])[0])
        if reasoning is None and template is not None and all(tag in template for tag in THINK_TAGS):
            reasoning = THINK_TAGS
        self._reasoning = reasoning
        self._default_thinking = default_thinking
        special = {text for text, token_id in tokenizer.special_spellings.items() if token_id in tokenizer.special_ids}
        self._guard = SpellingGuard(special)
        # A client sends an answer back as it got it, and templates look for the markers to drop old reasoning.
        self._assistant_guard = SpellingGuard(special - set(reasoning or ()))
        self._added_ids = frozenset(tokenizer.special_spellings.values())
        self._added_pattern = longest_match(tokenizer.special_spellings)

    @property
    def has_template(self) -> bool:
        return self._sandbox is not None

    @property
    def renders_tools(self) -> bool:
        """Whether tools reach the model. Asks the template the first time, so call it off the event loop."""
        return self.has_template and self._abilities.renders_tools

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_args: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt of a conversation.

        Special tokens come from the template only: their spellings inside messages, tools and arguments stay text.

        Raises:
            TemplateError: no template, messages it can't take, a reserved argument, or the template's own complaint.
            TokenizerError: the model has no tokenizer.
            ContextOverflow: it must have more tokens than fit.
        """
        self._check_text()
        normalised = normalise_messages(messages)
        # Templates may leave out old answers and results, but no question.
        self._require_room(*(message["content"] for message in normalised if message["role"] in ("system", "user")))
        args = self._arguments(template_args or {})
        offered = [plain_data(tool, "tools") for tool in tools]
        fitted = self._abilities.fitted(normalised)
        context = self._context(fitted, offered, args, add_generation_prompt)
        following = self._context([*fitted, *_fitted_next_turn(fitted)], offered, args, add_generation_prompt)
        rendered, next_turn = self._run([context, following])
        clean = without_guards(_text_of(rendered))
        self._require_room(clean.text)
        ids = self._one_bos(self._encoded(clean))
        if not ids:
            raise TemplateError("The chat template rendered these messages to nothing.")
        is_asked = add_generation_prompt and self._reasoning is not None
        is_open = is_asked and self._starts_in_reasoning(clean.text, context)
        may_reason = is_open or (is_asked and self._may_open_reasoning(clean.text, args))
        return Rendered(
            ids=tuple(ids),
            text=clean.text,
            messages=tuple(normalised),
            tools=tuple(tools),
            template_args=args,
            stable_boundary=self._stable_boundary(clean, ids, next_turn),
            starts_in_reasoning=is_open,
            reasoning=self._reasoning if may_reason else None,
        )

    def render_text(self, text: str, *, parse_special: bool = True) -> Rendered:
        """A raw prompt, with the BOS that the tokenizer puts in front.

        Args:
            text: the prompt; its author writes special tokens by their spelling.
            parse_special: false takes such spellings for text.

        Raises:
            RequestError: the text has no tokens at all.
            TokenizerError: the model has no tokenizer.
            ContextOverflow: it must have more than fit.
        """
        plain = plain_text(text)
        self._require_room(plain)
        ids = self._tokenizer.encode(plain, add_special=True, parse_special=parse_special)
        if not ids:
            raise RequestError("The prompt is empty.")
        return Rendered(ids=tuple(ids), text=plain)

    def render_ids(self, ids: Sequence[int]) -> Rendered:
        """A prompt given as token ids.

        Raises:
            RequestError: none, or one that isn't a token of this model.
        """
        if not ids:
            raise RequestError("The prompt is empty: at least one token id is needed.")
        limit = self._tokenizer.vocab_size
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < limit:
                raise RequestError(f"{token_id!r:.40} isn't a token id of this model: they run from 0 to {limit - 1}.")
        return Rendered(ids=tuple(ids))

    def warm_up(self) -> None:
        """Have ready whatever is found out once, and the processes that render, so that no request waits for it."""
        if why_no_text(self._tokenizer) is not None:
            return
        self._tokenizer.least_tokens("")
        if self._sandbox is None:
            return
        message = {"role": "user", "content": "Hello"}
        self._sandbox.warm_up(self._context([message]))
        # What the template refuses, every request will be told.
        with contextlib.suppress(PhylaError):
            self.render_chat([message])
            self._abilities.probe()

    def close(self) -> None:
        """End the processes that render. Safe to call twice."""
        if self._sandbox is not None:
            self._sandbox.close()

    def _check_text(self) -> None:
        reason = why_no_text(self._tokenizer)
        if reason is not None:
            raise TokenizerError(reason)

    def _require_room(self, *texts: str) -> None:
        """Refuse what can't fit however well it is encoded."""
        limit = self._context_limit
        # So short a text is soon encoded, and then counted.
        if limit is None or sum(map(len, texts)) < limit:
            return
        least = sum(map(self._tokenizer.least_tokens, texts))
        if least >= limit:
            raise ContextOverflow(
                f"The prompt has at least {least} tokens and the context limit is {limit}: no token can be generated. "
                "Shorten the prompt."
            )

    def _arguments(self, template_args: Mapping[str, Any]) -> dict[str, Any]:
        named = self._tokenizer.named_tokens
        for name in template_args:
            if name in RESERVED_ARGS or name in named or name.startswith("_"):
                raise TemplateError(f"The template argument {name!r:.60} is reserved; give it another name.")
        args: dict[str, Any] = plain_data(template_args, "template arguments")
        if self._default_thinking is not None:
            args.setdefault(THINKING_ARG, self._default_thinking)
        return args

    def _context(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] = (),
        args: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> dict[str, Any]:
        return {
            **self._tokenizer.named_tokens,
            "documents": None,
            **self._guard.guarded(dict(args or {})),
            "messages": [self._guarded_message(message) for message in messages],
            "tools": self._guard.guarded(list(tools)) or None,
            "add_generation_prompt": add_generation_prompt,
        }

    def _guarded_message(self, message: Message) -> Message:
        guard = self._assistant_guard if message["role"] == "assistant" else self._guard
        guarded: Message = guard.guarded(message)
        return guarded

    def _run(self, contexts: Sequence[Mapping[str, Any]]) -> list[RenderedText]:
        if self._sandbox is None:
            raise TemplateError(
                "This model has no chat template. Send a raw prompt (/v1/completions, or `generate --raw`), or put a "
                "chat_template.jinja beside its config."
            )
        return self._sandbox.render(contexts)

    def _encoded(self, clean: CleanText) -> list[int]:
        return self._tokenizer.encode_with_literals(clean.text, clean.literals)

    def _one_bos(self, ids: list[int]) -> list[int]:
        """Templates that print BOS and then a message that begins with it would give two."""
        bos = self._tokenizer.bos_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids

    def _stable_boundary(self, clean: CleanText, ids: Sequence[int], next_turn: RenderedText) -> int | None:
        """Tokens up to the last control token that both this prompt and the next turn's have in common.

        A control token is a place that no later text can merge across.
        """
        if next_turn.text is None:
            return None
        common = _common_length(clean.text, without_guards(next_turn.text).text)
        matches = self._added_pattern.finditer(clean.text)
        ends = [match.end() for match in matches if not clean.is_literal(*match.span())]
        places = [index for index, token_id in enumerate(ids) if token_id in self._added_ids]
        if len(ends) - len(places) not in (0, 1):  # one BOS may have been dropped
            return None
        num_after = sum(end > common for end in ends)
        stable = places[: len(places) - num_after]
        return stable[-1] + 1 if stable else None

    def _may_open_reasoning(self, text: str, args: Mapping[str, Any]) -> bool:
        """Whether the model may begin with reasoning by itself: it wasn't told not to, nor was it closed for it."""
        assert self._reasoning is not None
        return args.get("enable_thinking") is not False and not text.rstrip().endswith(self._reasoning[1])

    def _starts_in_reasoning(self, text: str, context: Mapping[str, Any]) -> bool:
        assert self._reasoning is not None
        start, end = self._reasoning
        opened = text.rfind(start)
        if opened < 0 or text.find(end, opened + len(start)) >= 0:
            return False
        # The generation prompt must have opened it, not a message that talks about the marker.
        without_prompt = self._run([{**context, "add_generation_prompt": False}])[0].text
        return without_prompt is not None and opened >= _common_length(text, without_guards(without_prompt).text)


def _text_of(rendered: RenderedText) -> str:
    if rendered.text is None:
        raise TemplateError(f"The chat template can't render these messages: {rendered.error}")
    return rendered.text


def _fitted_next_turn(messages: Sequence[Message]) -> list[Message]:
    """An answer and a question after these messages, in their shape."""
    if messages and isinstance(messages[-1]["content"], list):
        return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in _NEXT_TURN]
    return list(_NEXT_TURN)


def _common_length(first: str, second: str) -> int:
    """Characters that both begin with, by halving: prompts are long."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
