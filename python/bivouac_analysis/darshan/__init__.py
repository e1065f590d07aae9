"""Darshan logs: what a program did to its files, and a patterns file that repeats it.

`errors` names what can be wrong with a log, `use` is what was done to a file, and `groups` puts files together that were used alike.
`header` refuses what is no complete log, `process` has `child` read the rest in a process of its own, and `log` makes a summary of
that. `phases` derives phases from a summary, and `patterns` a patterns file. Each knows only those before it, and `child` nothing of
the package.
"""
