"""A schema: what it refuses, and that it comes back from a file as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.data.inputs import are_bounds
from sordino.data.schema import TO_FILL_IN, Column, Missing, Schema, TargetColumn

LABELS = TargetColumn("income", labels=("low", "high"))
AGE = Column("age", "number", low=0, high=120)


def schema_of(*columns: Column, **others: Any) -> Schema:
    return Schema(LABELS, columns, **others)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
texts = st.lists(names.map(str.strip), min_size=2, unique=True)
bounds = st.tuples(*[st.floats(-1e300, 1e300)] * 2).filter(lambda pair: are_bounds(*pair))


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    kind = draw(
        st.sampled_from(["number", "open", "values", "buckets", "text", "embedded", "ignore", "unknown"])
    )
    obtained = draw(st.sampled_from(["public", "private", "peeked"]))
    if kind == "number":
        low, high = draw(bounds)
        return Column(name, "number", low=low, high=high, log=draw(st.booleans()), obtained=obtained)
    makers = {
        "open": lambda: Column(name, draw(st.sampled_from(["number", "category"]))),
        "values": lambda: Column(name, "category", values=tuple(draw(texts)), obtained=obtained),
        "buckets": lambda: Column(name, "category", buckets=draw(st.integers(2, 99))),
        "text": lambda: Column(name, "text", buckets=draw(st.none() | st.integers(2, 99)), words=7),
        "embedded": lambda: Column(name, "text", embedding="module:" + draw(names)),
        "ignore": lambda: Column(name, "ignore"),
        "unknown": lambda: Column(name),
    }
    return makers[kind]()


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    target, user, *others = draw(st.lists(names, min_size=3, max_size=6, unique=True))
    low, high = draw(bounds)
    goals = [
        TargetColumn(target),
        TargetColumn(target, labels=tuple(draw(texts)), obtained="private"),
        TargetColumn(target, low=low, high=high),
        TargetColumn(target, numeric=True),
    ]
    return Schema(
        draw(st.sampled_from(goals)),
        tuple(draw(columns(name)) for name in others),
        user=draw(st.sampled_from([None, user])),
        delimiter=draw(st.sampled_from([",", ";", "\t", "|"])),
    )


@given(schemas())
def test_a_schema_comes_back_from_toml_and_from_json_as_it_was(schema: Schema) -> None:
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_toml(schema.to_toml("a comment\nof two lines")) == schema
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_toml_is_what_people_would_write() -> None:
    schema = schema_of(AGE, Column("job", "category"), Column('a "quoted"\nname', "text"), user="id")
    assert schema.to_toml("Drafted.") == (
        '# Drafted.\nuser = "id"\n\n[target]\nname = "income"\nlabels = ["low", "high"]\n\n[[column]]\n'
        'name = "age"\nkind = "number"\nlow = 0\nhigh = 120\n\n[[column]]\nname = "job"\nkind = "category"\n'
        'values = "FILL IN"  # such as ["a", "b"]; or buckets = 64 in its place\n\n'
        '[[column]]\nname = "a \\"quoted\\"\\u000aname"\nkind = "text"\n'
    )


def test_what_is_still_to_be_filled_in_is_listed_and_refused_in_one_line() -> None:
    schema = Schema(
        TargetColumn("y"), (Column("age", "number", low=0), Column("job", "category"), Column("x"))
    )
    assert schema.missing() == (
        Missing("age", "high"),
        Missing("job", "values"),
        Missing("x", "kind"),
        Missing("y", "labels"),
    )
    assert not schema.is_complete
    with pytest.raises(
        ValueError, match=r"fill in 'age' \(high\); 'job' \(values\); 'x' \(kind\); 'y' \(labels\)$"
    ):
        schema.check_complete()


def test_bounds_values_and_labels_are_put_in_with_how_they_were_obtained() -> None:
    schema = Schema(TargetColumn("y"), (Column("age", "number"), Column("job", "category")))
    full = schema.with_bounds("age", 1, 9).with_values("job", ["a"]).with_values("y", ["n", "y"], "public")
    full.check_complete()
    assert full.columns == (
        Column("age", "number", low=1, high=9, obtained="private"),
        Column("job", "category", values=("a",), obtained="private"),
    )
    assert full.target == TargetColumn("y", labels=("n", "y"))
    assert full.obtained("private") == ("age", "job")
    number = Schema(TargetColumn("y", numeric=True), (AGE,)).with_bounds("y", -1, 1)
    assert number.target.target.task == "regression"
    with pytest.raises(ValueError, match="no column 'nobody': it has 'age'"):
        number.with_bounds("nobody", 0, 1)


def test_a_category_without_any_value_may_be_what_a_private_estimate_found() -> None:
    assert Column("job", "category", values=(), obtained="private").missing == ()
    with pytest.raises(ValueError, match="has no values: list them, or write buckets"):
        Column("job", "category", values=())


def test_a_draft_whose_target_got_bounds_beside_its_label_line_is_a_number() -> None:
    toml = f'[target]\nname = "y"\nlabels = "{TO_FILL_IN}"\nlow = 0\nhigh = 1\n'
    assert Schema.from_toml(toml).target == TargetColumn("y", low=0, high=1)


TARGET = '[target]\nname = "y"\nlabels = ["a", "b"]\n'
COLUMN = TARGET + '[[column]]\nname = "x"\n'


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[target", "is no TOML"),
        ("a = " + "[" * 5000, "is no TOML"),
        ("", r"has no target: write \[target\]"),
        ("target = 3", "has no target"),
        ('[target]\nlabels = ["a", "b"]', "has no name"),
        ('[target]\nname = "y"\nlabels = ["a"]', "at least two labels"),
        ('[target]\nname = "y"\nlabels = "a"', "needs a list of labels"),
        ('[target]\nname = "y"\nlabels = ["a", " a "]', "has one of its labels twice"),
        ('[target]\nname = "y"\nlabels = ["a", ""]', "an empty one among its labels"),
        ('[target]\nname = "y"\nlabels = [true, false]', "labels that are no text"),
        ('[target]\nname = "y"\nlabels = ["a", "b"]\nlow = 1', "both labels and bounds"),
        ('[target]\nname = "y"\nlow = 2\nhigh = 1', "low must be below high"),
        ('[target]\nname = "y"\ncolour = 2', "unknown key 'colour': there are name, labels"),
        (TARGET + "[column]\nname = 3", "in double brackets"),
        (TARGET + "[[column]]\nname = 3", "has no name"),
        (TARGET + '[[column]]\nname = "y"', "'y' is in the schema twice"),
        ('user = "y"\n' + TARGET, "'y' is in the schema twice"),
        (COLUMN + '[[column]]\nname = "x"', "'x' is in the schema twice"),
        ("columns = 3\n" + TARGET, "unknown key 'columns'"),
        ('delimiter = "ab"\n' + TARGET, "a delimiter is one of"),
        ("delimiter = 3\n" + TARGET, "a delimiter is one of"),
        ("user = 3\n" + TARGET, "has no name"),
        (COLUMN + 'kind = "nummer"', "'nummer': choose one of number, category, text, ignore"),
        (COLUMN + "kind = 3", "choose one of"),
        (COLUMN + 'kind = "number"\nlow = 3\nhigh = 3', "low must be below high"),
        (COLUMN + 'kind = "number"\nlow = nan\nhigh = 3', "low that is no number"),
        (COLUMN + 'kind = "number"\nlow = -inf\nhigh = 3', "low that is no number"),
        (COLUMN + 'kind = "number"\nlow = true\nhigh = 3', "low that is no number"),
        (COLUMN + 'kind = "number"\nlow = "0"\nhigh = 3', "low that is no number"),
        (COLUMN + 'kind = "number"\nlow = 0\nhigh = 1' + "0" * 400, "high that is no number"),
        (COLUMN + 'kind = "number"\nlow = -1e308\nhigh = 1e308', r"low beyond 1e\+300: write one nearer"),
        (COLUMN + 'kind = "number"\nlow = 0\nhigh = 5e-324', "low must be below high"),
        ('[target]\nname = "y"\nlow = -1e308\nhigh = 1e308', r"low beyond 1e\+300: write one nearer"),
        (COLUMN + 'kind = "number"\nlow = 1979-05-27\nhigh = 3', "low that is no number"),
        (COLUMN + 'kind = "number"\nvalues = ["a"]', "which has no values"),
        (COLUMN + 'kind = "number"\nlog = 1', "neither true nor false"),
        (COLUMN + 'kind = "category"\nvalues = ["a"]\nbuckets = 3', "both values and buckets"),
        (COLUMN + 'kind = "category"\nbuckets = 1', "whole number from 2"),
        (COLUMN + 'kind = "category"\nbuckets = 2.5', "whole number from 2"),
        (COLUMN + 'kind = "category"\nvalues = {a = 1}', "needs a list of values"),
        (COLUMN + 'kind = "category"\nlow = 1', "which has no low"),
        (COLUMN + 'kind = "text"\nwords = 0', "whole number from 1"),
        (COLUMN + 'kind = "text"\nembedding = "x"', "embedding that is none"),
        (COLUMN + 'kind = "text"\nembedding = "a:b"\nbuckets = 5', "needs neither buckets nor words"),
        (COLUMN + 'kind = "ignore"\nobtained = "stolen"', "it is one of public, private, peeked"),
        (COLUMN + 'kind = "ignore"\ncolour = 2', "unknown key 'colour'"),
        ("column = [3]\n" + TARGET, "no table of names and values"),
        (COLUMN + 'kind = "category"\nlow = 0', "which has no low"),
    ],
)
def test_a_wrong_schema_gets_one_line_that_says_what_to_do(toml: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(toml)
    with pytest.raises(ValueError, match=said) as caught:
        Schema.read(path)
    assert "\n" not in str(caught.value)
    assert "schema.toml: " in str(caught.value)


def test_a_schema_that_cannot_be_read_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file or directory"):
        Schema.read(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ValueError, match="is not UTF-8"):
        Schema.read(tmp_path / "latin.toml")


def test_a_schema_with_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no column to learn from"):
        schema_of(Column("age", "ignore")).check_complete()


def test_a_byte_order_mark_before_a_schema_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_bytes(b"\xef\xbb\xbf" + schema_of(AGE).to_toml().encode())
    assert Schema.read(tmp_path / "schema.toml") == schema_of(AGE)
