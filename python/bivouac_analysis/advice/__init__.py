"""Advice: what a program does with files, and how to run it for that.

`nearest` says how far a measured pattern is from a program's, and `gain` how much faster one way is than another. `recommendations` is
what is recommended, as data. `storages` knows which kinds of storage there are, and `papers` published measurements. `forwarding` and
`storage` find a recommendation from measured results, or else from papers. `program` says what the program does, `options` what to
write into a batch script, and `advice` puts everything together. `results` reads what was measured, and `command` is the command line.
Each knows only those before it.
"""
