"""All messages between actors, as frozen typed structs: up to whoever leads, down from there,
between peers, to and from trainer ranks, to and from users, and to and from programs with training
loops of their own.

A reader who knows these messages knows the protocol; the handlers are in the actors' own files.
Offers name tensor bundles that travel on the tensor transport; no bulk data is in a message.
"""
