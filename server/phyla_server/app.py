"""The application: routes, error handling and the OpenAPI page, inside the guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Litestar
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

import phyla_server
from phyla_server.guard import Guard, GuardRules
from phyla_server.handlers import HANDLERS
from phyla_server.routes.access import require_access
from phyla_server.routes.chat import chat_routes
from phyla_server.routes.models import model_routes
from phyla_server.routes.ops import ops_routes
from phyla_server.routes.text import text_routes
from phyla_server.serving import Serving


def create_litestar(serving: Serving, plugin_routes: Sequence[Any] = ()) -> Litestar:
    """The routes alone. Never serve this without its guard."""
    return Litestar(
        [
            *chat_routes(serving),
            *text_routes(serving),
            *model_routes(serving),
            *ops_routes(serving),
            *plugin_routes,
        ],
        guards=[require_access],
        exception_handlers=HANDLERS,
        openapi_config=OpenAPIConfig(
            title="Phyla",
            version=phyla_server.version(),
            description="OpenAI-compatible inference server.",
            path="/schema",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"key": []}],
        ),
        logging_config=None,
        debug=False,
    )


def create_app(serving: Serving, rules: GuardRules, plugin_routes: Sequence[Any] = ()) -> Guard:
    """What is served: every route, plugins' included, is behind the guard."""
    return Guard(create_litestar(serving, plugin_routes), rules)
