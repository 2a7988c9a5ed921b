"""The description of the server for tools: https://spec.openapis.org/oas/v3.1.0."""

from typing import Any

from pydantic.json_schema import models_json_schema

from training.extras import release
from training.serving.fields import Fields
from training.serving.requests import ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest

READS = {
    "/v1/models": "The name of the model",
    "/v1/models/{model}": "The model of a name",
    "/health": "200 while requests are answered, 503 while the server is stopping",
    "/metrics": "Figures for Prometheus",
    "/openapi.json": "This description",
}
REQUESTS: dict[str, tuple[str, type[Fields]]] = {
    "/v1/completions": ("Continue a prompt", CompletionRequest),
    "/v1/chat/completions": ("Answer a conversation", ChatRequest),
    "/v1/embeddings": ("Embed texts", EmbeddingRequest),
    "/tokenize": ("The tokens of a prompt or a conversation", TokenizeRequest),
}
"""The requests with a body, and its fields."""
KEY = {"type": "http", "scheme": "bearer"}
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def description() -> dict[str, Any]:
    """Return the description of all paths, and the schema of each request."""
    forms = [form for _, form in REQUESTS.values()]
    at, schemas = models_json_schema(
        [(form, "validation") for form in forms], ref_template="#/components/schemas/{model}"
    )
    paths = {path: {"get": _operation(summary)} for path, summary in READS.items()}
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{model}"]["get"]["parameters"] = [name]
    for path, (summary, form) in REQUESTS.items():
        body = {"required": True, "content": {"application/json": {"schema": at[form, "validation"]}}}
        paths[path] = {"post": _operation(summary) | {"requestBody": body}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "formal-algorithms", "version": release()},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], "Error": ERROR}, "securitySchemes": {"key": KEY}},
        "security": [{}, {"key": []}],
    }


def _operation(summary: str) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "the answer"},
            "default": {"description": "what is wrong", "content": refused},
        },
    }
