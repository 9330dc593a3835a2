"""Command `doctor`: what this installation can do, and how far it was tried."""

from __future__ import annotations

import click

from . import _binding
from .backends import evidence_of, list_devices
from .cli_common import json_option, print_json

__all__ = ["doctor"]


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """The loaded library, its devices, and the evidence there is for the codec on each."""
    devices = []
    for device in list_devices():
        known = evidence_of(device.name)
        devices.append(
            {
                "device": device.name,
                "description": device.description,
                "backend": known.name if known else None,
                "evidence": known.level.value if known else "none: archives go by way of host memory, if asked for",
                "executed": known.executed if known else None,
                "shown_by": list(known.shown_by) if known else [],
            }
        )
    facts = {
        "library": str(_binding.llama._lib._name),
        "patch_digest": _binding.PATCH_DIGEST,
        "llama_commit": _binding.LLAMA_COMMIT,
        "abi_version": _binding.ABI_VERSION,
        "devices": devices,
    }
    if as_json:
        print_json(facts)
        return
    for key in ("library", "patch_digest", "llama_commit", "abi_version"):
        click.echo(f"{key}: {facts[key]}")
    for one in devices:
        click.echo(f"{one['device']} ({one['description']}): {one['evidence']}")
        if one["executed"]:
            click.echo(f"  {one['executed']}")
