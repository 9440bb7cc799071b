"""The `[server]` section: where to listen and whom to trust."""

from __future__ import annotations

from typing import Literal

from phyla import PluginSettings, setting
from phyla.settings import OnOff


class ServerSettings(PluginSettings, section="server"):
    """Listening, safety and request defaults of `phyla serve`."""

    host: str = setting("127.0.0.1", flag="--host", metavar="ADDRESS")
    """Address to listen on. Anything but loopback needs a key, or --insecure."""

    port: int = setting(8080, flag="--port", ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    unix: str | None = setting(None, flag="--unix", metavar="PATH")
    """Listen on this unix socket instead; host and port are ignored."""

    insecure: bool = setting(False, flag="--insecure")
    """Listen beyond loopback although no key is set."""

    allowed_host: tuple[str, ...] = setting((), flag="--allowed-host", metavar="NAME")
    """Further names that may stand in a request's Host header; * allows any."""

    allowed_origin: tuple[str, ...] = setting(
        (), flag="--allowed-origin", aliases=("--allowed-origins",), metavar="ORIGIN"
    )
    """Web origins that browsers may call from (`https://app.example`); * allows any."""

    api_key: str | None = setting(None, flag="--api-key", metavar="KEY")
    """One user key. Better in a file or in PHYLA_SERVER__API_KEY: other users of the machine see command lines."""

    api_key_file: str | None = setting(None, flag="--api-key-file", metavar="PATH")
    """File with user keys, one a line; # starts a comment. Each key is a cache namespace of its own."""

    admin_key: str | None = setting(None, flag="--admin-key", metavar="KEY")
    """One admin key, which also opens /admin. Better in a file or in PHYLA_SERVER__ADMIN_KEY."""

    admin_key_file: str | None = setting(None, flag="--admin-key-file", metavar="PATH")
    """File with admin keys, one a line."""

    max_body_bytes: int = setting(33_554_432, flag="--max-body-bytes", ge=1024, le=1 << 32)
    """Largest request body in bytes, after decompression."""

    head_seconds: float = setting(30.0, flag="--head-seconds", gt=0, le=3600)
    """A connection whose request line and headers aren't whole after so many seconds is closed."""

    body_seconds: float = setting(60.0, flag="--body-seconds", gt=0, le=3600)
    """A request whose body isn't whole after so many seconds is refused with 408, and its connection closed."""

    keepalive_seconds: float = setting(5.0, flag="--keepalive-seconds", gt=0, le=3600)
    """A stream that is silent for so long (in prefill, or while output is held back) gets a comment."""

    shutdown_timeout_ms: int = setting(120_000, lever="SHUTDOWN_TIMEOUT_MS", gt=0)
    """Milliseconds that running requests get to finish after SIGINT or SIGTERM."""

    thinking: OnOff | None = setting(None, flag="--thinking")
    """Whether turns think where the request doesn't say; else the model's own default."""

    output_parser: str | None = setting(None, flag="--output-parser", metavar="NAME")
    """How answers spell reasoning and tool calls; else chosen by family and chat template."""

    structured_fallback: Literal["refuse", "warn"] = setting("refuse", flag="--structured-fallback")
    """What becomes of a response format that can't be enforced: `refuse` answers 400 and names the keyword; `warn` asks
    the model for it in words, and says so in a Warning header."""

    compat: Literal["openai", "mlx-lm"] = setting("openai", flag="--compat")
    """Shape of log-probabilities: OpenAI's, or that of mlx_lm.server."""
