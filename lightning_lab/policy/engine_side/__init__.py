"""What runs in an engine's own interpreter, where this folder is on the module path: nothing here imports the lab."""
