"""Text to ids and back, and chat templates in a sandbox."""

from phyla.tokenizer.tokenizer import Detokenizer, TextSpan, Tokenizer

__all__ = ["Detokenizer", "TextSpan", "Tokenizer"]
