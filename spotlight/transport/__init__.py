"""How bytes move: control messages, tensor bundles, and collectives."""
