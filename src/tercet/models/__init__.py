"""Retrieval models: batch -> embeddings -> S. One system per file; all learned parameters are here."""

from tercet.models.bfan import BFAN, BFANSettings
from tercet.models.clip import CLIP, CLIPSettings
from tercet.models.heads import Heads, HeadsSettings
from tercet.models.registry import SYSTEMS, build, learns_scale, preset, system_of, training_defaults
from tercet.models.scan import SCAN, SCANSettings
from tercet.models.vse_infinity import VSEInfinity, VSEInfinitySettings
from tercet.models.vsepp import VSEPP, VSEPPSettings
from tercet.models.vsrn import VSRN, VSRNSettings
from tercet.models.xvlm import XVLM, XVLMSettings

__all__ = [
    "BFAN",
    "CLIP",
    "SCAN",
    "SYSTEMS",
    "VSEPP",
    "VSRN",
    "XVLM",
    "BFANSettings",
    "CLIPSettings",
    "Heads",
    "HeadsSettings",
    "SCANSettings",
    "VSEInfinity",
    "VSEInfinitySettings",
    "VSEPPSettings",
    "VSRNSettings",
    "XVLMSettings",
    "build",
    "learns_scale",
    "preset",
    "system_of",
    "training_defaults",
]
