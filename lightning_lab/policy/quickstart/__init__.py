"""The quickstart's tiny model: a warm checkpoint and the script that made it (``make.py``)."""
