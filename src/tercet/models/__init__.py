"""Batch -> embeddings -> S: one system a file; the only learned parameters."""

from tercet.models.bfan import BFAN, BFANSettings
from tercet.models.catalogue import SYSTEMS, build, preset
from tercet.models.heads import Heads, HeadsSettings
from tercet.models.scan import SCAN, SCANSettings
from tercet.models.vse_infinity import VSEInfinity, VSEInfinitySettings
from tercet.models.vsepp import VSEPP, VSEPPSettings
from tercet.models.vsrn import VSRN, VSRNSettings

__all__ = [
    "BFAN",
    "SCAN",
    "SYSTEMS",
    "VSEPP",
    "VSRN",
    "BFANSettings",
    "Heads",
    "HeadsSettings",
    "SCANSettings",
    "VSEInfinity",
    "VSEInfinitySettings",
    "VSEPPSettings",
    "VSRNSettings",
    "build",
    "preset",
]
