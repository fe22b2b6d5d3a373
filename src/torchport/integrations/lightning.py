"""Lightning: the device as an accelerator, and the strategies that put a module on it.

Lightning chooses the device by the classes of the accelerators that it ships, so an accelerator alone would leave the
module on the CPU, and ``precision="bf16-mixed"`` would cast on CUDA. The strategies below say both. Importing this
module also registers the names, for the command line and for ``Trainer(accelerator="port", strategy="port")``.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.plugins.precision import MixedPrecision as FabricMixedPrecision
from lightning.fabric.plugins.precision import Precision as FabricPrecision
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies import SingleDeviceStrategy as FabricSingleDeviceStrategy
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from torchport.config import settings

_NAME = settings.device_name


class TorchportAccelerator(Accelerator):
    """The device as Lightning counts, checks and measures it."""

    def setup_device(self, device: torch.device) -> None:
        """Checks that it is the device.

        Raises:
            MisconfigurationException: it is another one.
        """
        if device.type != _NAME:
            raise MisconfigurationException(
                f"{type(self).__name__} is for {_NAME!r}, and the strategy is on {str(device)!r}. "
                f'Use Trainer(accelerator="{_NAME}", strategy="{_NAME}"), or Trainer(strategy=TorchportStrategy()).'
            )
        torch.get_device_module(device).set_device(device)

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """The memory figures, for ``DeviceStatsMonitor``."""
        stats: dict[str, Any] = torch.get_device_module(_NAME).memory_stats(device)
        return stats

    def teardown(self) -> None:
        """Does nothing: nothing is cached."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """How many devices are asked for: there is one.

        Raises:
            MisconfigurationException: it is another number, or an index that is not 0.
        """
        if devices not in (1, "1", -1, "-1", [0], "0,"):
            raise MisconfigurationException(f"devices={devices!r}: there is one device, {_NAME}:0; use devices=1")
        return 1

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """The devices themselves."""
        return [torch.device(_NAME, index) for index in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """How many ``devices="auto"`` means."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether the device is registered with torch."""
        return torch._C._get_privateuse1_backend_name() == _NAME

    @staticmethod
    def name() -> str:
        """The device's name."""
        return _NAME


class TorchportStrategy(SingleDeviceStrategy):
    """Trains on the device: ``Trainer(strategy=TorchportStrategy(), precision="bf16-mixed")``.

    Args:
        accelerator: given by the trainer where it is chosen by name.
        checkpoint_io: as in every strategy.
        precision_plugin: as in every strategy.
    """

    strategy_name = _NAME

    def __init__(
        self, accelerator: Accelerator | None = None, checkpoint_io: Any = None, precision_plugin: Any = None
    ) -> None:
        accelerator = TorchportAccelerator() if accelerator is None else accelerator
        super().__init__(torch.device(_NAME, 0), accelerator, checkpoint_io, precision_plugin)

    @property
    def precision_plugin(self) -> Precision:
        """How numbers are cast; mixed precision is that of this device."""
        plugin: Precision = SingleDeviceStrategy.precision_plugin.fget(self)
        return plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        if isinstance(plugin, MixedPrecision) and plugin.device != _NAME:
            plugin = MixedPrecision(plugin.precision, _NAME)
        SingleDeviceStrategy.precision_plugin.fset(self, plugin)


class TorchportFabricStrategy(FabricSingleDeviceStrategy):
    """Runs on the device: ``Fabric(strategy=TorchportFabricStrategy(), precision="bf16-mixed")``.

    Args:
        accelerator: given by the fabric where it is chosen by name.
        checkpoint_io: as in every strategy.
        precision: as in every strategy.
    """

    def __init__(
        self, accelerator: Accelerator | None = None, checkpoint_io: Any = None, precision: Any = None
    ) -> None:
        accelerator = TorchportAccelerator() if accelerator is None else accelerator
        super().__init__(torch.device(_NAME, 0), accelerator, checkpoint_io, precision)

    @property
    def precision(self) -> FabricPrecision:
        """How numbers are cast; mixed precision is that of this device."""
        plugin: FabricPrecision = FabricSingleDeviceStrategy.precision.fget(self)
        return plugin

    @precision.setter
    def precision(self, plugin: FabricPrecision | None) -> None:
        if isinstance(plugin, FabricMixedPrecision) and plugin.device != _NAME:
            plugin = FabricMixedPrecision(plugin.precision, _NAME)
        FabricSingleDeviceStrategy.precision.fset(self, plugin)


for _registry in (AcceleratorRegistry, ACCELERATOR_REGISTRY):
    _registry.register(_NAME, TorchportAccelerator, description="the lazy device of torchport", override=True)
for _registry, _strategy in ((StrategyRegistry, TorchportStrategy), (STRATEGY_REGISTRY, TorchportFabricStrategy)):
    _registry.register(_NAME, _strategy, description="the lazy device of torchport", override=True)
