"""Whether what a certificate says is true: from its events alone, with no training code."""

from sordino.verifying.verification import Refuted, Verification, verify

__all__ = ["Refuted", "Verification", "verify"]
