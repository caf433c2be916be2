"""Validation of documents by the parts of JSON Schema that docs/schemas uses."""

import json

from tests.support.paths import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
_TYPES |= {"integer": int, "number": (int, float), "null": type(None)}
_KNOWN = {"$schema", "$ref", "$defs", "title", "description", "const", "enum", "type", "required"}
_KNOWN |= {"properties", "additionalProperties", "items"}


def require_schema(document, name):
    """Raise `AssertionError`, with the path, unless a document follows docs/schemas/<name>.json."""
    whole = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    _require(document, whole, whole, "$")


def _require(value, schema, whole, where):
    assert set(schema) <= _KNOWN, where
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "const" in schema:
        assert value == schema["const"], where
    if "enum" in schema:
        assert value in schema["enum"], where
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, _TYPES[name]) for name in types), where
        assert "boolean" in types or not isinstance(value, bool), where
    if value is None:
        return
    assert set(schema.get("required", ())) <= set(value if isinstance(value, dict) else ()), where
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, entry in value.items() if isinstance(value, dict) else ():
        assert key in properties or rest is not False, where
        _require(entry, properties.get(key, rest), whole, f"{where}.{key}")
    for i, entry in enumerate(value if isinstance(value, list) and "items" in schema else ()):
        _require(entry, schema["items"], whole, f"{where}[{i}]")
