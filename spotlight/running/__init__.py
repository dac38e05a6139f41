"""Jobs from outside: talking to a coordinator, and runs on this machine. The command line and
programs that embed Spotlight use the same. Nothing here prints, handles signals or owns a loop.
"""
