"""What is printed once requests are taken."""

from __future__ import annotations

from phyla import Settings
from phyla.engine.settings import EngineSettings
from phyla.plan import Plan
from phyla.sampling.settings import SamplingSettings

from phyla_server.settings import ServerSettings


def ready_card(plan: Plan, settings: Settings, url: str) -> str:
    """Model, address, and one line of what was chosen."""
    unix = settings.section(ServerSettings).unix
    address = f"{url}/v1" if unix is None else f"unix:{unix}"
    levers = ", ".join(f"{name} {value}" for name, value in _levers(plan, settings).items())
    lines = [f"Serving {plan.model_id}", f"  API     {address}", f"  Chosen  {levers}"]
    budget = settings.section(EngineSettings).memory_budget
    if budget is not None:
        lines.append(f"  Memory  at most {budget / 1e9:.1f} GB")
    return "\n".join([*lines, *(f"  Note    {notice}" for notice in plan.notices)])


def _levers(plan: Plan, settings: Settings) -> dict[str, str]:
    sampling, engine = settings.section(SamplingSettings), settings.section(EngineSettings)
    thinking = settings.section(ServerSettings).thinking
    levers: dict[str, object] = {
        "family": plan.family.name,
        "dtype": plan.dtype,
        "kv-scheme": plan.kv_scheme.name,
        "method": plan.method.name,
        "route": plan.route,
        "batch": engine.batch,
        "thinking": None if thinking is None else "on" if thinking else "off",
        "temperature": sampling.temperature,
        "top-p": sampling.top_p,
        "top-k": sampling.top_k,
    }
    return {name: str(value) for name, value in levers.items() if value is not None}
