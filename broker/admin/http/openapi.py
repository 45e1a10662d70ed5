"""The description of every path, as OpenAPI 3.1, made from the routes and the Structs that they take and give."""

from __future__ import annotations

from typing import Any

import msgspec

from staniel.broker.admin.http.routes import ROUTES, Route
from staniel.broker.version import VERSION
from staniel.protocol.http.requests import RAW

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
TEXT_PARAMETERS = ("prefix", "span", "for")


def document() -> bytes:
    """Return the description as JSON. It takes 20 ms and is seldom requested."""
    kinds = [kind for route in ROUTES for kind in (route.reply, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    of_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of_kind)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Staniel", "version": VERSION, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "components": {
                "schemas": {**components, "Error": ERROR},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}, {}],
        }
    )


def _operation(route: Route, of_kind: dict[int, dict[str, Any]]) -> dict[str, Any]:
    named = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.parts
        if part.startswith("{")
    ]
    asked = [
        {"name": name, "in": "query", "schema": {"type": "string" if name in TEXT_PARAMETERS else "integer"}}
        for name in route.query
    ]
    good: dict[str, Any] = {"description": route.summary}
    if route.reply is not None:
        good["content"] = {route.type: {"schema": of_kind[id(route.reply)]}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    description: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.serve.__name__ + ("_" + route.parts[-1].replace(".", "_") if "." in route.path else ""),
        "parameters": named + asked,
        "responses": {"200": good, "default": {"description": "Refused; the text says why.", "content": error}},
    }
    if route.body is not None:
        content: dict[str, Any] = {"application/json": {"schema": of_kind[id(route.body)]}}
        if route.raw:
            content[RAW] = {"schema": {"type": "string", "format": "binary"}}
        description["requestBody"] = {"content": content}
    return description
