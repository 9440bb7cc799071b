"""Requests made up from the OpenAPI document: whatever is sent, nothing is a 500 and every status is documented."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from phyla_server.openapi import ENDPOINTS
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

OPERATIONS = [endpoint.replace("{id}", "{model_id}") for endpoint in ENDPOINTS if "schema" not in endpoint]
QUICK = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "misfit"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_made_up_requests_are_answered_as_documented(serve, label, mode):
    schema = schemathesis.openapi.from_url(f"{serve('Hi.').server.url}/schema/openapi.json")
    method, path = label.split()

    @QUICK
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def every_case(case):
        case.call_and_validate(checks=CHECKS)

    every_case()
