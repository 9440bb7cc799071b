"""The process that renders chat templates: untrusted programs, so they get a sandbox, and a life that can be ended.

Speaks frames over its standard streams: four bytes of length, then JSON. Runs until its input ends. Imports nothing of
Phyla, so it starts fast and has nothing to leak.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_ERROR_CHARS = 400


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _limit(resource.RLIMIT_FSIZE, 0)
    write_frame(sink, {"ready": True})
    for request in _frames(source):
        if request["memory_bytes"]:
            _limit(resource.RLIMIT_AS, request["memory_bytes"])
        _limit_cpu(request["cpu_seconds"])
        try:
            answer = _answer(request)
        except MemoryError:
            answer = {"error": "it needs more memory than a prompt may."}
        write_frame(sink, answer)


def write_frame(sink: BinaryIO, value: dict[str, Any]) -> None:
    """One value, length first."""
    data = json.dumps(value).encode()
    sink.write(struct.pack("<I", len(data)) + data)
    sink.flush()


def _frames(source: BinaryIO) -> Iterator[dict[str, Any]]:
    while len(prefix := source.read(4)) == 4:
        (length,) = struct.unpack("<I", prefix)
        yield json.loads(source.read(length))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        template = _compiled(request["template"])
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"[:MAX_ERROR_CHARS]}
    except RecursionError:
        return {"error": "it is nested too deeply."}
    return {"results": [_rendered(template, context, request["max_chars"]) for context in request["contexts"]]}


def _rendered(template: jinja2.Template, context: dict[str, Any], max_chars: int) -> dict[str, str]:
    pieces: list[str] = []
    num_chars = 0
    try:
        for piece in template.generate(context):
            num_chars += len(piece)
            if num_chars > max_chars:
                return {"error": f"it writes more than {max_chars} characters."}
            pieces.append(piece)
    except MemoryError:
        return {"error": "it needs more memory than a prompt may."}
    except RecursionError:
        return {"error": "it calls itself without end."}
    except Exception as error:  # whatever a stranger's program raises
        return {"error": (str(error) or type(error).__name__)[:MAX_ERROR_CHARS]}
    return {"text": "".join(pieces)}


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """What templates on the hub are written for: transformers' options, filters and globals."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_make_dict, namespace=PlainNamespace
    )
    return environment


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote, for training; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own as transformers gives it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainNamespace(Namespace):
    """A namespace that keeps no underscored name, so no way to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Positional only, so that a template may keep something called `self`.
        own, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}: names with an underscore in front")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return dt.datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _limit_cpu(seconds: float) -> None:
    """A worker whose parent died in mid-render ends itself."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + seconds) + 2)


def _limit(kind: int, value: int) -> None:
    # Not every system enforces every limit; the parent's deadline holds on all of them.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
