"""Engines that live in environments of their own: which versions the lab supports, and installing them."""
