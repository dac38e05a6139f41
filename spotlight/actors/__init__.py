"""Who acts: the runtime, and one file per actor. Import the runtime from
`spotlight.actors.runtime`.
"""
