"""Agent Lightning v1.0's REST and proxy routes, so that its client, controllers and agents work with this gateway.

Its controllers hand every agent one shared key, and its agents post their own rewards: whoever has the key may read and
alter all rollouts here. So these routes are off by default and listen on a port with a key of their own.
"""

from lightning_lab.gateway.agl.server import AglServer

__all__ = ["AglServer"]
