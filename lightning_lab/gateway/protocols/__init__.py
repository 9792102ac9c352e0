"""One file per wire protocol: request → canonical form, reply → wire, errors in the protocol's own shape."""
