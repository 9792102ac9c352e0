"""The gateway and the store's writer in a process of their own, so that a kernel that is busy does not slow them."""

from lightning_lab.gateway.process.kernel import GatewayProcess

__all__ = ["GatewayProcess"]
