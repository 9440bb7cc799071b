"""Text to ids and back, and chat templates in a sandbox."""

from phyla.tokenizer.absent import AbsentTokenizer, why_no_text
from phyla.tokenizer.render import PromptRenderer
from phyla.tokenizer.sandbox import TemplateLimits
from phyla.tokenizer.tokenizer import Detokenizer, TextSpan, Tokenizer

__all__ = [
    "AbsentTokenizer",
    "Detokenizer",
    "PromptRenderer",
    "TemplateLimits",
    "TextSpan",
    "Tokenizer",
    "why_no_text",
]
