"""`adapter`: which adapters a request wants to run with."""

from __future__ import annotations

from phyla_server.errors import bad_request
from phyla_server.fields import Fields


def require_base_model(fields: Fields) -> None:
    """Pass what runs on the base model as it is.

    Raises:
        ApiError: 400 for an adapter by name: answering without it would be another model's answer.
    """
    adapter = fields.text("adapter")
    if adapter not in (None, "", "none"):
        raise bad_request(f"adapter '{adapter[:64]}' isn't mounted; mounted: none", "adapter")
