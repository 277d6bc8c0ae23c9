"""The rest of a page: the data, what is to be believed, settings, versions, and how to check all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sordino.report.account import mapping, number
from sordino.report.html.kept import Kept
from sordino.report.html.numbers import shown
from sordino.report.html.pieces import bullets, clock, code, facts, mark, section, table
from sordino.report.html.tags import Html, Part, joined, tag
from sordino.report.words import settings

_ELSEWHERE = {  # of run.json, what has a place of its own, or carries a mark
    "status", "assumptions", "unprotected", "metrics", "ledger", "tuning", "seconds", "peak_memory_mib",
    "seconds_and_memory", "time", "caveat", "epsilon", "planned_epsilon", "zcdp_rho", "gdp_mu", "sordino_version",
}  # fmt: skip
_MANY = 12  # values of a column that are shown
_OBTAINED = {
    "public": "stated as public",
    "private": "estimated with noise, under a budget",
    "peeked": "read off the private rows",
}


# The data -------------------------------------------------------------------------------------------------------


def data(run: Kept) -> Html:
    """What raw rows are, and how each bound was obtained."""
    said = run.inputs
    if said is None:
        text = "No description of raw rows was kept with this run (inputs.json): it was given numbers as they are."
        return section("data", "The data", tag("p", text), facts(_data_facts(run)))
    pairs: list[tuple[str, Part]] = [("kind", str(said.get("kind", "not stated"))), *_data_facts(run)]
    pairs += _target(mapping(said.get("target")))
    schema = mapping(said.get("schema"))  # of a table: what differs from public bounds is said in it
    columns = said.get("columns", schema.get("columns", schema.get("column")))
    if isinstance(columns, list) and schema:
        columns = [{"obtained": "public", **mapping(each)} if _has_bounds(each) else each for each in columns]
    pairs += (
        [("target obtained", _obtained(each))]
        if "obtained" in (each := mapping(schema.get("target")))
        else []
    )
    known = {"format", "kind", "target", "columns", "schema"} | (
        {"name"} if said.get("name") == run.summary.get("data") else set()
    )
    more = [
        (_spoken(name), _plain(value))
        for name, value in flat({k: v for k, v in said.items() if k not in known})
    ]
    listed = _columns(columns) if isinstance(columns, list) and columns else None
    return section("data", "The data", facts([*pairs, *more]), listed)


def _data_facts(run: Kept) -> Iterator[tuple[str, Part]]:
    yield "name", str(run.summary.get("data", "not stated"))
    domain = mapping(mapping(run.certificate).get("data")).get("domain")
    if domain:
        yield "the guarantee is about", str(domain)


def _target(target: Mapping[str, Any]) -> Iterator[tuple[str, Part]]:
    if not target:
        return
    yield "target", str(target.get("name") or "not named")
    labels = target.get("labels")
    if isinstance(labels, list) and labels:
        yield "classes", _some(labels)
    if target.get("low") is not None or target.get("high") is not None:
        yield "between", f"{_plain(target.get('low'))} and {_plain(target.get('high'))}"
    if target.get("obtained") is not None:
        yield "how they were obtained", _obtained(target)


def _has_bounds(column: Any) -> bool:
    return any(mapping(column).get(name) is not None for name in ("low", "high", "values"))


def _columns(columns: list[Any]) -> Html:
    rows: list[list[Part]] = []
    for place, each in enumerate(columns):
        column = mapping(each)
        rows.append(
            [
                str(column.get("name", f"column {place + 1}")),
                _obtained(column),  # before what a phone leaves to be scrolled to
                str(column.get("kind", "not stated")),
                _holds(column),
            ]
        )
    return table("Columns, and how each bound was obtained", ["column", "obtained", "kind", "values"], rows)


def _holds(column: Mapping[str, Any]) -> str:
    low, high, values = column.get("low"), column.get("high"), column.get("values")
    if low is not None or high is not None:
        return f"{_plain(low)} to {_plain(high)}"
    if isinstance(values, list):
        return _some(values)
    buckets = column.get("buckets")
    return f"hashed into {_plain(buckets)}" if buckets is not None else "-"


def _obtained(column: Mapping[str, Any]) -> Html:
    how = column.get("obtained")
    if how is None:
        return joined("-")
    words = _OBTAINED.get(str(how), str(how))
    return joined(words, mark("not private") if how == "peeked" else None)


def _some(values: list[Any]) -> str:
    first = ", ".join(_plain(value) for value in values[:_MANY])
    return first if len(values) <= _MANY else f"{first}, and {len(values) - _MANY} more"


# What is believed, and what was set -----------------------------------------------------------------------------


def assumptions(run: Kept) -> Html:
    certified = mapping(run.certificate).get("assumptions")
    stated = certified if isinstance(certified, list) else run.summary.get("assumptions")
    trust = mapping(mapping(run.certificate).get("deployment")).get("trust")
    why = mapping(run.certificate).get("rationale")
    found = [str(line) for line in stated] if isinstance(stated, list) else []
    lines = bullets(found) if found else tag("p", "None are written down yet: a certificate has them.")
    more = [("whom to trust", str(trust))] if trust else []
    more += [("why this epsilon", str(why))] if why else []
    return section("assumptions", "What you have to believe", lines, facts(more))


def settings_of(run: Kept) -> Html:
    """What was set, in a few lines; and everything that run.json has of it, folded away."""
    elsewhere = (
        "took",
        "rows of a client",
        "delivered",
        "learning rate",
        "threshold",
        "tolerance",
        "cloud norm",
    )
    few = [(name, value) for name, value in settings(run.account) if name not in elsewhere]
    rest = {name: value for name, value in run.summary.items() if name not in _ELSEWHERE}
    rows: list[list[Part]] = [
        [name, joined(_plain(value), mark() if bare else None)]
        for name, value, bare in _flat_with_cover(rest)
    ]
    everything = tag(
        "details",
        tag("summary", "All settings, as run.json has them"),
        table("Settings", ["name", "value"], rows),
    )
    return section("settings", "Settings", facts(few), everything if rows else None)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Nested names and their values: method.clip.kind, and Fixed."""
    for found, each, _ in _flat_with_cover(value, name):
        yield found, each


def _flat_with_cover(value: Any, name: str = "", bare: bool = False) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(value, Mapping):
        bare = bare or value.get("covered") is False
        for key, part in value.items():
            yield from _flat_with_cover(part, f"{name}.{key}" if name else str(key), bare)
    elif isinstance(value, list) and any(isinstance(part, Mapping | list) for part in value):
        for place, part in enumerate(value[:_MANY]):
            yield from _flat_with_cover(part, f"{name}.{place + 1}", bare)
    elif isinstance(value, list):
        yield name, _some(value) or "none", bare
    else:
        yield name, value, bare


def _spoken(name: str) -> str:
    return name.replace("_", " ").replace(".", ", ")


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown(float(value), 6) if isinstance(value, float) else str(value)


# What it ran on, and how to check it ----------------------------------------------------------------------------


def machine(run: Kept) -> Html:
    summary = run.summary
    pairs: list[tuple[str, Part]] = []
    versions = mapping(mapping(run.certificate).get("versions")) or {
        "sordino": summary.get("sordino_version", "?")
    }
    pairs.append(("versions", ", ".join(f"{name} {each}" for name, each in versions.items())))
    if number(summary.get("seconds")) >= 0:
        pairs.append(("seconds", joined(clock(_plain(summary["seconds"])), mark())))
    if number(summary.get("peak_memory_mib")) >= 0:
        pairs.append(("peak memory", joined(clock(f"{_plain(summary['peak_memory_mib'])} MiB"), mark())))
    rounded = mapping(summary.get("seconds_and_memory")).get("rounded up to")
    if rounded:
        pairs.append(("rounded up to", str(rounded)))
    created = mapping(run.certificate).get("created")
    if created:
        pairs.append(("created", clock(str(created))))
    return section("machine", "What it ran on", facts(pairs))


def verify(run: Kept) -> Html:
    """The commands, and what the certificate is sealed with."""
    document = run.certificate
    if document is None:
        text = "There is no certificate yet: a run writes it when it ends."
        again = (
            None
            if run.account.finished
            else tag("p", "To go on, repeat its command with --out DIR --resume.")
        )
        return section("verify", "How to check it", tag("p", text), again)
    signature, model = mapping(document.get("signature")), mapping(document.get("model"))
    signed = (
        f"Ed25519, by the key {signature.get('public_key')}" if signature else "none: nobody vouches for it"
    )
    pairs: list[tuple[str, Part]] = [
        ("digest", clock(str(document.get("digest")))),
        ("signature", clock(signed)),
    ]
    if model.get("sha256"):
        pairs.append((f"SHA-256 of {model.get('file')}", tag("span", str(model["sha256"]))))
    ledger = mapping(document.get("ledger"))
    if ledger.get("counted"):
        pairs.append(
            ("head of the ledger", clock(f"{ledger.get('head')} after {ledger.get('length')} entries"))
        )
    return section(
        "verify",
        "How to check it",
        code("sordino verify .", "sordino verify . --json"),
        facts(pairs),
        note="In the folder of the run. All numbers are recomputed from the events in certificate.json, by more than "
        "one accountant, and the files beside it are compared with it. This page itself proves nothing.",
    )
