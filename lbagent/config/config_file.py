"""The configuration file: a YAML mapping of keys to values, read with the line of each key."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from lbagent.config.schema import BY_NAME, FALSE_WORDS, TRUE_WORDS, Option
from lbagent.durations import parse_whole_seconds
from lbagent.errors import ConfigError
from lbagent.kernel.regular_file import read_regular
from lbagent.value_errors import MAX_SHOWN, shown, tab_problem

Fault = Callable[[str], None]  # takes `PLACE: what is wrong`

MAX_DEPTH = 64  # levels of nesting; keys have two at most


def read_file(path: str, fault: Fault) -> dict[str, tuple[Any, str]]:
    """Read the YAML mapping with the line of each key. `fault` takes the fault of a key, which is then left out.

    Raises ConfigError for a file that is no mapping.
    """
    import yaml  # 0.7 MiB and 10 ms, only for a command with a file

    text = ""
    try:
        text = read_regular(path).decode("utf-8-sig")
        _refuse_deep_nesting(text, path)
        node = yaml.compose(text, yaml.CSafeLoader)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        words = (getattr(error, "context", None), getattr(error, "problem", None))
        problem = (mark and tab_problem(text, line)) or " ".join(filter(None, words)) or str(error)
        raise ConfigError(f"not YAML: {problem}", file=path, line=line) from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        found = _container(node) or _shown(node)
        line = node.start_mark.line + 1
        raise ConfigError(f"a mapping of keys to values is wanted, not {found}", file=path, line=line)
    out: dict[str, tuple[Any, str]] = {}
    for key_node, value_node in node.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
        option = BY_NAME.get(key)
        if option is None:
            fault(f"{place}: {unknown_key(key)}")
            continue
        if option.key in out:
            fault(f"{place}: {key} is given twice (first at {out[option.key][1]})")
            continue
        place += f": {key}"
        try:
            out[option.key] = (_from_node(option, value_node, place), place)
        except ConfigError as error:
            fault(str(error))
    return out


def _refuse_deep_nesting(text: str, path: str) -> None:
    """Raise ConfigError for a text nested beyond MAX_DEPTH: PyYAML composes by recursion in C, without a limit."""
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigError(f"more than {MAX_DEPTH} levels", file=path, line=line)


def _from_node(option: Option, node: Any, place: str) -> Any:
    """Read words as written (`node-name: 007` is a name), numbers and switches by YAML's rules. Raises ConfigError."""
    import yaml

    scalar = isinstance(node, yaml.ScalarNode)
    null = node.tag.endswith(":null")
    if option.kind == "list":
        items: list[Any] = [node] if scalar else node.value if isinstance(node, yaml.SequenceNode) else [None]
        items = [] if null else items
        if all(isinstance(item, yaml.ScalarNode) and not item.tag.endswith(":null") for item in items):
            return tuple(item.value for item in items)
    elif option.kind in ("text", "choice"):
        if scalar:
            return "" if null else node.value
    elif scalar and option.unit == "s" and node.tag.endswith(":str"):
        try:
            return parse_whole_seconds(node.value)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
    elif scalar and node.tag == f"tag:yaml.org,2002:{'int' if option.kind == 'number' else 'bool'}":
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, LookupError):  # `!!int x`
            pass
    raise ConfigError(f"{place}: {_wrong_node(node, VALUE_KINDS[option.kind])}")


VALUE_KINDS = {
    "text": "a text",
    "choice": "a word",
    "number": "a whole number",
    "switch": "true or false",
    "list": "a text or a list of texts",
}


def _wrong_node(node: Any, wanted: str) -> str:
    """Return the message about a YAML value of a wrong type, with the words of `value_errors.wrong_type`."""
    if node.id == "sequence" and wanted == VALUE_KINDS["list"]:
        item = next(item for item in node.value if item.id != "scalar" or item.tag.endswith(":null"))
        return f"{wanted} is wanted, and one item is {_container(item) or _shown(item)}"
    if (container := _container(node)) or node.tag.endswith(":null"):
        return f"{wanted} is wanted, not {container or _shown(node)}"
    return f"{_shown(node)} is not {wanted}"


def _container(node: Any) -> str:
    return {"mapping": "a mapping", "sequence": "a list"}.get(node.id, "")


def _shown(node: Any) -> str:
    """Return a plain YAML value: numbers and true or false as written, texts in quotes."""
    if node.tag.endswith(":null"):
        return "nothing"
    text = node.value
    is_number = node.tag.endswith((":int", ":float")) and text.lstrip("+-.")[:1].isdigit()
    is_switch = node.tag.endswith(":bool") and text.lower() in TRUE_WORDS | FALSE_WORDS
    return text[:MAX_SHOWN] if is_number or is_switch else shown(text)


def unknown_key(key: str) -> str:
    """Return the message about a key that does not exist, with the nearest one."""
    near = difflib.get_close_matches(key.replace("_", "-").lower(), BY_NAME, n=1)
    return f"unknown key {key!r}" + (
        f"; did you mean {near[0]!r}?" if near else "; see `lbagent config show` for all keys"
    )
