"""Devices, figures and texts; and that the backend can be left and taken up again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchport.backend import BackendDevice, BackendDeviceType
from torchport.config import settings
from torchport.conformance.case import Laws, Violation, require
from torchport.conformance.comparison import check_values
from torchport.conformance.graphs import doubled
from torchport.conformance.subject import Subject

LAWS = Laws("devices")


@LAWS.add()
def there_is_a_device(subject: Subject) -> None:
    """get_backend_devices() lists at least one device, and the default one is among them."""
    devices = subject.backend.get_backend_devices()
    require(devices, "get_backend_devices() is empty")
    require(len(set(devices)) == len(devices), f"get_backend_devices() lists one twice: {', '.join(map(str, devices))}")
    default = BackendDevice(subject.backend.get_default_device_type(), subject.backend.get_default_device_ordinal())
    require(default in devices, f"the default device {default} is not among {', '.join(map(str, devices))}")


@LAWS.add()
def the_virtual_device_has_one_behind_it(subject: Subject) -> None:
    """The concrete device of the virtual one, with and without an index, is one of the backend's."""
    devices = subject.backend.get_backend_devices()
    for virtual in (torch.device(settings.device_name), torch.device(settings.device_name, 0)):
        found = subject.backend.get_backend_device(virtual)
        require(found in devices, f"behind {virtual} is {found}, which get_backend_devices() does not list")


@LAWS.add()
def what_does_not_exist_is_refused(subject: Subject) -> None:
    """A device type or ordinal that is not there is a ValueError, and the default stays."""
    backend = subject.backend
    before = backend.get_default_device_type(), backend.get_default_device_ordinal()
    count = len(backend.get_backend_devices())
    calls: dict[str, Callable[[], None]] = {
        "set_default_device_type(NOSUCH)": lambda: backend.set_default_device_type(BackendDeviceType("NOSUCH")),
        f"set_default_device_ordinal({count + 7})": lambda: backend.set_default_device_ordinal(count + 7),
        "set_default_device_ordinal(-1)": lambda: backend.set_default_device_ordinal(-1),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            require(str(error), f"the ValueError of {name} has no text")
        else:
            raise Violation(f"{name} is accepted")
    after = backend.get_default_device_type(), backend.get_default_device_ordinal()
    require(before == after, f"the default was {before} and is {after} after what was refused")


@LAWS.add()
def the_default_can_be_chosen(subject: Subject) -> None:
    """The present default may be chosen again."""
    subject.backend.set_default_device_type(subject.backend.get_default_device_type())
    subject.backend.set_default_device_ordinal(subject.backend.get_default_device_ordinal())


@LAWS.add()
def fallbacks_have_a_place(subject: Subject) -> None:
    """eager_fallback_device_type() names a device that torch has here."""
    name = subject.backend.eager_fallback_device_type().name.lower()
    torch.ones(1, device=name).add_(1)


@LAWS.add()
def a_program_spans_what_is_asked(subject: Subject) -> None:
    """get_compilation_devices() gives the devices that are asked for, or else just the device."""
    one = subject.device
    other = BackendDevice(one.type, one.ordinal + 1)
    require(subject.backend.get_compilation_devices(one, []) == [one], "without devices it is not [device]")
    found = subject.backend.get_compilation_devices(one, [one, other])
    require(found == [one, other], f"for [{one}, {other}] it is {found}")


@LAWS.add()
def figures_are_numbers(subject: Subject) -> None:
    """get_metrics() maps names to numbers, and the report is text."""
    for name, figure in subject.backend.get_metrics().items():
        require(isinstance(name, str) and isinstance(figure, int | float), f"get_metrics() has {name!r}: {figure!r}")
    require(isinstance(subject.backend.create_metric_report(), str), "create_metric_report() is no text")


@LAWS.add()
def a_computation_has_a_text(subject: Subject) -> None:
    """get_computation_backend_text() of what was compiled is a text."""
    graph = doubled(subject.upload(torch.ones(2)), subject.backend.get_ir_builder())
    text = subject.backend.get_computation_backend_text(subject.compile(graph))
    require(isinstance(text, str) and text.strip(), f"the text of a compiled computation is {text!r}")


@LAWS.add()
def the_cache_key_is_a_text(subject: Subject) -> None:
    """cache_key() is a text, and the same when asked again."""
    key = subject.backend.cache_key()
    require(isinstance(key, str) and key, f"cache_key() is {key!r}")
    require(key == subject.backend.cache_key(), "cache_key() changes from call to call")


@LAWS.add()
def it_can_be_taken_up_again(subject: Subject) -> None:
    """After prepare_to_exit(), once and twice, the same object works."""
    for _ in range(2):
        subject.backend.prepare_to_exit()
    data = subject.upload(torch.ones(2, 3))
    check_values(torch.full((2, 3), 2.0), subject.run(doubled(data, subject.backend.get_ir_builder()))[0])
