"""Converts the parts of a plan from and to JSON values; returns the schema of the printed JSON."""

import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, NoReturn

from graph_analyzer.errors import AnalysisError
from graph_analyzer.records import (
    MODES,
    MUTABILITIES,
    SITE_KINDS,
    VERSION,
    Edge,
    Site,
    Task,
    Variable,
)


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of all JSON that this package prints."""
    text = resources.files("graph_analyzer").joinpath("schema.json").read_text("utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


class _Row:
    """One JSON object and its location, for error messages."""

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        if not isinstance(value, dict):
            self.fail("an object", value)
        self.values: dict[str, Any] = value

    def fail(self, wanted: str, value: Any) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:60] + "…"
        raise AnalysisError(f"not a plan: {self.where} should be {wanted}, not {shown}")

    def take(self, key: str, wanted: str, accepts: Callable[[Any], bool]) -> Any:
        if key not in self.values:
            raise AnalysisError(f"not a plan: {self.where} has no {key!r}")
        value = self.values[key]
        if not accepts(value):
            _Row({}, f"{self.where}.{key}").fail(wanted, value)
        return value

    def text(self, key: str) -> str:
        return str(self.take(key, "a string", lambda v: isinstance(v, str)))

    def one_of(self, key: str, known: tuple[str, ...]) -> str:
        return str(
            self.take(
                key, f"one of {', '.join(known)}", lambda v: isinstance(v, str) and v in known
            )
        )

    def count(self, key: str) -> int:
        return int(self.take(key, "a non-negative integer", _is_count))

    def count_or_none(self, key: str) -> int | None:
        def accepts(value: Any) -> bool:
            return value is None or _is_count(value)

        value: int | None = self.take(key, "null or a non-negative integer", accepts)
        return value

    def flag(self, key: str) -> bool:
        return bool(self.take(key, "true or false", lambda v: isinstance(v, bool)))

    def seconds(self, key: str) -> float:
        return float(self.take(key, "a time in seconds", _is_time))

    def shape(self, key: str) -> tuple[int | None, ...] | None:
        value = self.take(key, "null or a list of dimensions", _is_shape)
        return None if value is None else tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self.take(key, "a list of strings", _is_texts))

    def rows(self, key: str) -> "list[_Row]":
        items = self.take(key, "a list", lambda v: isinstance(v, list))
        return [_Row(item, f"{key}[{index}]") for index, item in enumerate(items)]

    def row(self, key: str) -> "_Row":
        value = self.take(key, "an object", lambda v: isinstance(v, dict))
        return _Row(value, f"{self.where}.{key}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_time(value: Any) -> bool:
    return _is_count(value) or (isinstance(value, float) and 0 <= value < math.inf)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_shape(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and all(item is None or _is_count(item) for item in value)
    )


def read(text: str | bytes) -> dict[str, Any]:
    """Return the fields of the ``Plan`` in ``text``; raises like ``Plan.from_json``."""
    try:
        top = _Row(json.loads(text, parse_constant=_refuse), "the document")
    except (ValueError, RecursionError) as error:
        if isinstance(error, AnalysisError):
            raise
        raise AnalysisError(f"not a plan: this is not JSON ({error})") from error
    version = top.take("version", "an integer", _is_integer)
    if version != VERSION:
        raise AnalysisError(
            f"the plan has version {version}, but this program reads version {VERSION}. "
            "Make the plan again with this program"
        )
    return {
        "arena_limit": top.count("arena_limit"),
        "analysis_seconds": top.seconds("analysis_seconds"),
        "nodes": top.count("nodes"),
        "tasks": tuple(_part(Task, row) for row in top.rows("tasks")),
        "edges": tuple(_part(Edge, row) for row in top.rows("edges")),
        "variables": tuple(_part(Variable, row) for row in top.rows("variables")),
    }


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_BY_TYPE: dict[Any, Callable[[_Row, str], Any]] = {
    str: _Row.text,
    int: _Row.count,
    int | None: _Row.count_or_none,
    bool: _Row.flag,
    tuple[str, ...]: _Row.texts,
    tuple[int | None, ...] | None: _Row.shape,
}
_BY_NAME: dict[str, Callable[[_Row, str], Any]] = {
    "kind": lambda row, key: row.one_of(key, SITE_KINDS),
    "mode": lambda row, key: row.one_of(key, MODES),
    "mutability": lambda row, key: row.one_of(key, MUTABILITIES),
    "site": lambda row, key: _part(Site, row.row(key)),
}


def _part(kind: type[Any], row: _Row) -> Any:
    """Read the fields of one of the classes in ``records``."""
    readers = {each.name: _BY_NAME.get(each.name) or _BY_TYPE[each.type] for each in fields(kind)}
    return kind(**{name: read(row, name) for name, read in readers.items()})


def values(item: Any) -> dict[str, Any]:
    """Return the JSON values of a part of a plan."""
    return {field.name: _value(getattr(item, field.name)) for field in fields(item)}


def _value(value: Any) -> Any:
    if isinstance(value, Site):
        return values(value)
    return list(value) if isinstance(value, tuple) else value
