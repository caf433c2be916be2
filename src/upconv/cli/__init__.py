"""The command line: `upconv bench`, `run`, `shape`, `explain`, `verify`, `doctor`.

Data goes to stdout and talk to stderr. `app` puts the commands together, each in the file of its
name; `options` and `spelling` hold what they share of arguments, `report` of output, `endings` of
exit codes. Nothing here computes: it is the library's public functions with words around them.
"""
