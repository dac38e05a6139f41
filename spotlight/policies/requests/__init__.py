"""The pull scheduler's decisions: who may work on what, until when, and what counts.

`table` takes events and gives instructions. `rows` are what it keeps, and `accounts` what is saved
of them. `waiting` and `matching` say who gets what, `endings` how a lease ends, `blame` who is at
fault when something fails, `pace` what is known of speed.
"""
