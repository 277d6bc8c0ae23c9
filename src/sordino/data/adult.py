"""UCI Adult (Becker and Kohavi, 1996): who earned more than $50,000 in the US census of 1994, comma-separated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.download import Folders, PublicFile
from sordino.data.loaded import Loaded

_Floats: TypeAlias = npt.NDArray[np.float64]

_HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
TRAIN = PublicFile("adult/adult.data", f"{_HOME}adult.data", md5="5d7c39d7b8804f071cdd1f2a7c460872")
TEST = PublicFile("adult/adult.test", f"{_HOME}adult.test", md5="35238206dfdf7f1fe215bbb874adecdc")

# In the order of the file. fnlwgt is how many people a row stands for in the census, not a fact about a person.
_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)
_LABELS = {"<=50K": 0, ">50K": 1}
_MISSING = "?"

# Round numbers, fixed in advance and public: never computed from the rows at hand.
_SCALES: dict[str, Callable[[_Floats], _Floats]] = {
    "age": lambda years: (years - 40) / 15,
    "education-num": lambda level: (level - 10) / 3,
    "capital-gain": lambda dollars: np.log1p(dollars) / 5,
    "capital-loss": lambda dollars: np.log1p(dollars) / 5,
    "hours-per-week": lambda hours: (hours - 40) / 12,
}

# As adult.names publishes them, spelling included, whether or not a row has them.
_SCHEMA = """
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay,
    Never-worked.
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th,
    Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool.
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent,
    Married-AF-spouse.
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty,
    Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving,
    Priv-house-serv, Protective-serv, Armed-Forces.
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried.
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black.
sex: Female, Male.
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany,
    Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines,
    Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador,
    Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador,
    Trinadad&Tobago, Peru, Hong, Holand-Netherlands.
"""
_CATEGORIES = {
    column: " ".join(categories.split()).split(", ")
    for column, categories in (entry.strip().split(": ") for entry in _SCHEMA.strip().rstrip(".").split("."))
}
_FEATURES = len(_SCALES) + sum(len(categories) for categories in _CATEGORIES.values())  # 5 + 99

_NUMBER = re.compile(r"[0-9]{1,9}")
_REPAIR = "delete it and get it again from its public home"


def load_adult(folders: Folders) -> Loaded:
    """UCI Adult from `adult/adult.data` and `adult/adult.test`: 104 inputs, of about unit size.

    First the five numbers (age, education-num, capital-gain, capital-loss, hours-per-week), scaled by public
    constants; then the eight categorical columns, one input for each published category. A missing value
    ("?") is all zeros in its column's block, and no row is left out. The census weight fnlwgt is.
    """
    train, test = (_read(folders.find(file.path) or folders.fetch(file)) for file in (TRAIN, TEST))
    return Loaded(
        name="adult",
        train=train,
        test=test,
        classes=2,
        labels=tuple(_LABELS),
        input_shape=(_FEATURES,),
        public=(
            *("number of rows", "number of classes", "shape of the inputs"),
            "categories of each column (those of adult.names)",
            "scaling constants (fixed in advance)",
        ),
    )


def _read(path: Path) -> tuple[Tensor, Tensor]:
    columns = dict(zip(_COLUMNS, zip(*_split(path), strict=True), strict=True))
    count = len(columns["income"])

    def refuse(column: str, wanted: str) -> ValueError:
        # Neither the value nor its line: the file may be one of the user's own, and then both are private.
        return ValueError(f"{path}: {column} is not {wanted} in every row: {_REPAIR}")

    inputs = np.zeros((count, _FEATURES), dtype=np.float32)
    for position, (column, scale) in enumerate(_SCALES.items()):
        if not all(map(_NUMBER.fullmatch, columns[column])):
            raise refuse(column, "a whole number")
        inputs[:, position] = scale(np.array(columns[column], dtype=np.float64))
    offset = len(_SCALES)
    for column, categories in _CATEGORIES.items():
        codes = {category: code for code, category in enumerate(categories)} | {_MISSING: -1}
        if not codes.keys() >= set(columns[column]):
            raise refuse(column, "one of the published categories")
        found = np.array([codes[value] for value in columns[column]])
        present = np.flatnonzero(found >= 0)
        inputs[present, offset + found[present]] = 1
        offset += len(categories)
    # Labels of the test file end in a dot; some copies of it do not.
    labels = _LABELS | {f"{label}.": number for label, number in _LABELS.items()}
    if not labels.keys() >= set(columns["income"]):
        raise refuse("income", "<=50K or >50K")
    targets = torch.tensor([labels[value] for value in columns["income"]], dtype=torch.int64)
    return torch.from_numpy(inputs), targets


def _split(path: Path) -> list[list[str]]:
    """The values of each row; comments ("|...") and empty lines are none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: {_REPAIR}") from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None
    rows = []
    for line in lines:
        if not line.strip() or line.startswith("|"):
            continue
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_COLUMNS):
            raise ValueError(f"{path} does not have {len(_COLUMNS)} columns in every row: {_REPAIR}")
        rows.append(values)
    if not rows:
        raise ValueError(f"{path} has no rows: {_REPAIR}")
    return rows
