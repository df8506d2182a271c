"""How a server of one vendor is had: an endpoint from the environment, else a container, else a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from twophase.testing.servers.container import has_image
from twophase.testing.servers.server import Server, Way

Endpoint = TypeVar("Endpoint")


@dataclass(frozen=True)
class Vendor(Generic[Endpoint]):
    """The three ways to a server of one vendor."""

    name: str
    variables: tuple[str, ...]
    """Name the endpoint of a server that runs already: all of them, or none."""
    image: str
    image_variable: str
    given: Callable[[Mapping[str, str]], Server[Endpoint]]
    in_container: Callable[[str], Server[Endpoint]]
    on_this_machine: Callable[[Path], Server[Endpoint]]


def choose(
    vendor: Vendor[Endpoint], environment: Mapping[str, str], *, image_is_here: Callable[[str], bool] = has_image
) -> Way:
    """Which way to take. An endpoint that is given in part is an error: half of a wish is no permission to ignore it."""
    missing = [name for name in vendor.variables if not environment.get(name)]
    if not missing:
        return Way.GIVEN
    if len(missing) < len(vendor.variables):
        raise ValueError(
            f"{vendor.name}: {', '.join(missing)} must be set too, or none of {', '.join(vendor.variables)}"
        )
    return Way.CONTAINER if image_is_here(image_of(vendor, environment)) else Way.PROCESS


def image_of(vendor: Vendor[Endpoint], environment: Mapping[str, str]) -> str:
    return environment.get(vendor.image_variable) or vendor.image


def server_of(vendor: Vendor[Endpoint], folder: Path, environment: Mapping[str, str] = os.environ) -> Server[Endpoint]:
    """A server, not started yet, by the best way there is."""
    match choose(vendor, environment):
        case Way.GIVEN:
            return vendor.given({name: environment[name] for name in vendor.variables})
        case Way.CONTAINER:
            return vendor.in_container(image_of(vendor, environment))
        case Way.PROCESS:
            return vendor.on_this_machine(folder)
