"""The entry of a verified certificate for OpenDP's registry of deployments, at its highest tier of transparency.

Fields and their order are those of the registry's own entries (github.com/opendp/deployments-registry-data, as they
were in September 2026). What no certificate can know (who publishes the model, for what, where) is left to its owner.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sordino.privacy.certificate import show_epsilon
from sordino.verifying.verification import Verification

FILL_IN = "FILL IN"


def registry_entry(found: Verification) -> str:
    """The entry as YAML. A certificate that promises nothing has none: `ValueError`."""
    if not found.stands:
        raise ValueError(
            f"there is nothing to register: the certificate promises nothing ({found.document['claim']['words']})"
        )
    missing = "\n".join(f"#   {line}" for line in _left_to_the_owner())
    head = f"# An entry for the registry of deployments, from a certificate. Yours to fill in:\n{missing}\n"
    return head + _yaml(_entry(found))


def _left_to_the_owner() -> list[str]:
    return [
        "name, curators, intended use, region and sector;",
        "what was done with the data before, and looked at.",
    ]


def _entry(found: Verification) -> dict[str, Any]:
    said = found.document
    name = said["data"]["name"] or "data"
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"sordino {name} {said['digest'][:8]}".lower()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"{FILL_IN}: the name of the model trained on {name}",
                "data_curators": [
                    {"data_curator_name": f"{FILL_IN}: who publishes it", "data_curator_type": FILL_IN}
                ],
                "intended_use": f"{FILL_IN}: what it is for",
                "data_product_type": "Machine learning model",
                "data_product_region": FILL_IN,
                "description": f"A model trained with Sordino. {said['claim']['words']}",
                "publication_date": said["created"][:10],
                "data_product_sector": FILL_IN,
            },
            **_tiers_two_and_three(found),
            "administrative": {
                "sources": (
                    f"certificate.json, {said['format']}, SHA-256 {said['digest']}; anyone can check it with "
                    "sordino verify"
                ),
                "registry_authors": [f"{FILL_IN}: who fills this in"],
            },
        },
    }


def _tiers_two_and_three(found: Verification) -> dict[str, Any]:
    said = found.document
    guarantee, how = said["guarantee"], said["implementation"]
    rho = {} if guarantee["zcdp_rho"] is None else {"rho": guarantee["zcdp_rho"]}
    return {
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": said["data"]["domain"],
            "unprotected_quantities": _listed(said["unprotected"]) or "None are known.",
        },
        "privacy_loss": {
            "privacy_unit": f"{guarantee['unit'].capitalize()}-level",
            "privacy_unit_details": f"One unit is {guarantee['unit_means']}. {said['assumptions'][0]}",
            "privacy_parameters": {"epsilon": guarantee["epsilon"], "delta": guarantee["delta"], **rho},
            "privacy_parameters_details": _parameters(found),
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": said["deployment"]["trust"],
            "actors": said["deployment"]["trust"],
            "release_type": "One release",
            "release_type_details": said["ledger"]["note"],
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": _listed(said["post_processing"]) or "None.",
            "composition": f"{said['accounting']['composition']} Accountant: {said['accounting']['accountant']}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": (
                f"{FILL_IN}: what was done to the data before, and which earlier runs settings were chosen by. "
                f"{said['ledger']['note']}"
            ),
            "mechanisms": _listed(
                [
                    *said["events_in_words"],
                    f"Sordino {said['versions']['sordino']}. {how['method']}",
                    how["noise"],
                    said["randomness"]["source"],
                    how["floating_point"],
                    how["side_channels"],
                    how["access"],
                ]
            ),
            "justification": _listed(
                [said["rationale"], *(f"Assumed: {each}" for each in said["assumptions"])]
            ),
        },
    }


def _parameters(found: Verification) -> str:
    points = found.document["guarantee"]["profile"]
    profile = ", ".join(f"{show_epsilon(float(point['epsilon']))} at {point['delta']:g}" for point in points)
    return f"Epsilon at other deltas: {profile}. {found.document['guarantee']['about_mu_and_rho']}"


def _listed(sentences: list[str]) -> str:
    return "\n".join(f"- {each}" for each in sentences)


# YAML, as little of it as this needs --------------------------------------------------------------------------


def _yaml(value: Any, indent: int = 0) -> str:
    pad = "  " * indent
    if isinstance(value, dict):
        return "".join(f"{pad}{name}:{_inline(part, indent)}" for name, part in value.items())
    return "".join(f"{pad}-{_inline(part, indent)}" for part in value)


def _inline(part: Any, indent: int) -> str:
    if isinstance(part, dict | list):
        return "\n" + _yaml(part, indent + 1)
    if isinstance(part, str) and "\n" in part:
        lines = "".join(f"{'  ' * (indent + 1)}{line}\n" for line in part.splitlines())
        return f" |\n{lines}"
    return f" {_scalar(part)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 takes 1e-05 for a text: its numbers have a point.
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"
    return json.dumps(value, ensure_ascii=False)
