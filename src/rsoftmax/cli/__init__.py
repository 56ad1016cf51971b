"""The command line, in files named after the commands; ``application.py`` puts them together."""
