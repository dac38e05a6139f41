"""Who acts: `runtime` (actors, mailboxes, delivery), `protocol` (what they say to each other), and
the rooms of the three processes: `coordinator`, `node` and `worker`.
"""
