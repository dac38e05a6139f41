"""The page that shows runs while they go on: a web server over a folder of runs, and its files."""
